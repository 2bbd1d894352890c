"""Retrieval over grids of tasks, lengths and depths: sparse against dense in one run."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from selfdraft.cli.eval_answer import Answer, Answerer
from selfdraft.cli.eval_cases import MakeCase, fitted, renderer
from selfdraft.cli.eval_needle import needle_case
from selfdraft.cli.eval_ruler import TASKS
from selfdraft.cli.eval_wording import Wording
from selfdraft.errors import ResourceError

if TYPE_CHECKING:
    from selfdraft.cli.session import Session

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """What both retrieval evaluations take."""

    lengths: tuple[int, ...]
    """Tokens of the prompt."""
    trials: int
    """Questions of each cell."""
    tokens: int
    """Tokens of a reply at most."""
    wording: Wording
    seed: int = 0
    dense_question: bool = False
    template_args: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A kind of question, at a depth where it has one."""

    name: str
    make: MakeCase
    depth: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Scores of one task, depth and length; mean over the trials, 0 to 1."""

    task: str
    depth: float | None
    length: int
    trials: int
    prompt_tokens: float
    dense: float
    sparse: float | None
    """None where every layer of the bundle is dense."""
    blocks_read: int
    """By the sparse replies, summed over rows and sparse layers."""
    blocks_in_use: int

    @property
    def share(self) -> float | None:
        """Blocks read by blocks in use; None for a dense bundle."""
        return self.blocks_read / self.blocks_in_use if self.blocks_in_use else None


def needle_tasks(*, depths: Sequence[float], keys: Sequence[int]) -> list[Task]:
    """One task for each number of keys and each depth."""
    return [
        Task(
            name=f"needle, {count} key{'s' if count > 1 else ''}",
            depth=depth,
            make=partial(needle_case, depth=depth, keys=count),
        )
        for count in keys
        for depth in depths
    ]


def ruler_tasks(names: Sequence[str]) -> list[Task]:
    """The tasks of ``eval_ruler.TASKS`` by name."""
    return [Task(name=name, make=TASKS[name]) for name in names]


def evaluate(
    session: Session, tasks: Sequence[Task], options: EvalOptions, *, on_progress: OnProgress
) -> list[Cell]:
    """Every task at every length. Raises ``ResourceError`` when the context is too small."""
    limit = session.bundle.manifest.limits.context_length
    longest = max(options.lengths)
    if longest + options.tokens > limit:
        raise ResourceError(
            f"a prompt of {longest} tokens and a reply of {options.tokens} do not fit the "
            f"context of {limit}",
            hint="give smaller --lengths, or export with a larger --context",
        )
    answerer = Answerer(
        session, length=longest, tokens=options.tokens, dense_question=options.dense_question
    )
    cells: list[Cell] = []
    total = len(options.lengths) * len(tasks)
    for length in options.lengths:
        for task in tasks:
            on_progress("questions", len(cells), total)
            cells.append(_cell(session, answerer, task, length, options))
    on_progress("questions", total, total)
    return cells


def _cell(
    session: Session, answerer: Answerer, task: Task, length: int, options: EvalOptions
) -> Cell:
    render = renderer(session, dict(options.template_args))
    rng = random.Random(f"{options.seed} {task.name} {task.depth} {length}")
    answers: list[dict[str, Answer]] = []
    sizes = 0
    for _ in range(options.trials):
        case = task.make(rng, options.wording)
        prompt = fitted(case, options.wording, rng, render, length=length)
        sizes += len(prompt.ids)
        answers.append(answerer.answer(prompt))
    sparse = [answer["sparse"] for answer in answers if "sparse" in answer]
    return Cell(
        task=task.name,
        depth=task.depth,
        length=length,
        trials=options.trials,
        prompt_tokens=sizes / options.trials,
        dense=sum(answer["dense"].score for answer in answers) / options.trials,
        sparse=sum(answer.score for answer in sparse) / len(sparse) if sparse else None,
        blocks_read=sum(answer.blocks_read for answer in sparse),
        blocks_in_use=sum(answer.blocks_in_use for answer in sparse),
    )
