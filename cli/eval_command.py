"""What ``selfdraft eval`` was asked for, run and printed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfdraft.cli.audit_text import text_ids
from selfdraft.cli.console import print_json, say, stage_progress
from selfdraft.cli.eval_acceptance import acceptance_by_position
from selfdraft.cli.eval_ruler import TASKS
from selfdraft.cli.eval_run import EvalOptions, Task, evaluate, needle_tasks, ruler_tasks
from selfdraft.cli.eval_tables import acceptance_text, cells_text, record_of
from selfdraft.cli.eval_wording import Wording, load_wording
from selfdraft.cli.numbers import numbers
from selfdraft.cli.prompts import template_args
from selfdraft.cli.session import EngineOptions, Session, open_session
from selfdraft.errors import ConfigError
from selfdraft.strict import closest_hint

SCHEMA = "selfdraft.eval/1"
RETRIEVAL, ACCEPTANCE = ("needle", "ruler"), "acceptance"
LENGTHS = (1024, 2048)
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
KEYS = (1, 4)
BUCKET_TOKENS = 4096

ONLY_FOR = {
    "lengths": RETRIEVAL,
    "depths": ("needle",),
    "keys": ("needle",),
    "tasks": ("ruler",),
    "dense_question": RETRIEVAL,
    "template_args": RETRIEVAL,
    "context": (ACCEPTANCE,),
    "text": (ACCEPTANCE,),
    "bucket": (ACCEPTANCE,),
    "drafts": (ACCEPTANCE,),
}
"""Options that only some kinds know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest:
    """Options as the command line gives them. Raises ``ConfigError`` for one of another kind."""

    kind: str
    lengths: str | None
    depths: str | None
    keys: str | None
    tasks: str | None
    dense_question: bool
    context: int | None
    text: Path | None
    bucket: int | None
    drafts: int | None
    wording: str
    template_args: tuple[str, ...]
    trials: int
    tokens: int
    seed: int

    def __post_init__(self) -> None:
        for name, kinds in ONLY_FOR.items():
            if getattr(self, name) not in (None, (), False) and self.kind not in kinds:
                option = "--" + name.replace("template_args", "template-arg").replace("_", "-")
                raise ConfigError(
                    f"{option} has no meaning for eval {self.kind}",
                    hint=f"leave it out; it belongs to: {', '.join(kinds)}",
                )


def run_eval(
    bundle: Path,
    request: EvalRequest,
    *,
    chunk: int | None,
    backend: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Run ``request`` and print what it found."""
    wording = load_wording(request.wording)
    drafts = request.drafts if request.kind == ACCEPTANCE else 0
    options = EngineOptions(backend=backend, threads=threads, chunk=chunk, drafts=drafts)
    run = _acceptance if request.kind == ACCEPTANCE else _retrieval
    record, text = run(bundle, request, wording, options, quiet=as_json)
    if as_json:
        head = {"schema": SCHEMA, "bundle": str(bundle), "kind": request.kind}
        print_json({**head, "wording": request.wording, "seed": request.seed, **record})
    else:
        say(text)


def _retrieval(
    bundle: Path, request: EvalRequest, wording: Wording, engine: EngineOptions, *, quiet: bool
) -> tuple[dict[str, Any], str]:
    tasks = _tasks(request)
    options = EvalOptions(
        lengths=numbers("--lengths", request.lengths, int, 1) or LENGTHS,
        trials=request.trials,
        tokens=request.tokens,
        wording=wording,
        seed=request.seed,
        dense_question=request.dense_question,
        template_args=tuple(template_args(request.template_args).items()),
    )
    session = open_session(bundle, engine)
    with stage_progress(quiet=quiet) as on_stage:
        cells = evaluate(session, tasks, options, on_progress=on_stage)
    return record_of(cells), cells_text(cells)


def _tasks(request: EvalRequest) -> list[Task]:
    if request.kind == "needle":
        return needle_tasks(
            depths=numbers("--depths", request.depths, float, 0, 1) or DEPTHS,
            keys=numbers("--keys", request.keys, int, 1) or KEYS,
        )
    names = request.tasks.split(",") if request.tasks else list(TASKS)
    for name in names:
        if name not in TASKS:
            raise ConfigError(
                f"unknown task {name!r}{closest_hint(name, list(TASKS))}",
                hint=f"tasks are: {', '.join(TASKS)}",
            )
    return ruler_tasks(names)


def _acceptance(
    bundle: Path, request: EvalRequest, wording: Wording, engine: EngineOptions, *, quiet: bool
) -> tuple[dict[str, Any], str]:
    session = open_session(bundle, engine)
    ids = _continued(session, request, wording)
    with stage_progress(quiet=quiet) as on_stage:
        buckets = acceptance_by_position(
            session,
            ids,
            bucket=request.bucket or BUCKET_TOKENS,
            trials=request.trials,
            tokens=request.tokens,
            on_progress=on_stage,
        )
    return record_of(buckets), acceptance_text(buckets)


def _continued(session: Session, request: EvalRequest, wording: Wording) -> Sequence[int]:
    """The text that is continued, as tokens."""
    room = max(session.bundle.manifest.limits.context_length - request.tokens, 1)
    length = request.context or room
    if request.text is not None:
        return text_ids(session, request.text, context=length)
    rng = random.Random(request.seed)
    sentences: list[str] = []
    ids: list[int] = []
    while len(ids) < length:
        sentences += [wording.filler_sentence(rng) for _ in range(64)]
        ids = session.tokenizer.encode(" ".join(sentences), add_special_tokens=True)
    return ids[:length]
