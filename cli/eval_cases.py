"""Questions about a long text, and the text fitted to a number of tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from selfdraft.cli.eval_wording import Wording
from selfdraft.cli.prompts import messages_of
from selfdraft.errors import ConfigError

if TYPE_CHECKING:
    from selfdraft.cli.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question about a text: pieces to plant in filler, and what must be answered."""

    lead: str
    planted: tuple[tuple[float, str], ...]
    """``(depth, sentence)``, depth 0 at the start of the text and 1 at its end."""
    question: str
    answers: tuple[str, ...]
    body: tuple[str, ...] | None = None
    """Sentences of the text where they are more than filler; repeated or cut to fit."""

    def text(self, filler: Sequence[str]) -> str:
        """The text with the planted sentences at their depths."""
        sentences = list(filler)
        # From the end, so that earlier places stay where they are.
        for depth, sentence in sorted(self.planted, key=lambda piece: piece[0], reverse=True):
            sentences.insert(round(depth * len(filler)), sentence)
        return self.lead + " ".join(sentences)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A case as tokens."""

    ids: tuple[int, ...]
    text_tokens: int
    """Leading tokens that do not depend on the question."""
    answers: tuple[str, ...]


MakeCase = Callable[[random.Random, Wording], Case]
Render = Callable[[str], list[int]]


def renderer(session: Session, template_args: dict[str, Any]) -> Render:
    """Turns a user message into prompt tokens, by the chat template where there is one."""
    tokenizer = session.tokenizer
    if session.bundle.manifest.text.chat_template is None:
        return lambda text: tokenizer.encode(f"{text}\n", add_special_tokens=True)
    template = session.chat_template()
    return lambda text: tokenizer.encode(
        template.render(messages_of(text, system=None), args=template_args),
        add_special_tokens=False,
    )


def fitted(
    case: Case, wording: Wording, rng: random.Random, render: Render, *, length: int
) -> Prompt:
    """The case in a text that makes the prompt at most ``length`` tokens, and nearly that.

    Raises ``ConfigError`` when even its bare question is longer.
    """
    bare = len(render(case.text([]) + case.question))
    if bare > length:
        raise ConfigError(
            f"the question alone has {bare} tokens, the prompt may have {length}",
            hint=f"give lengths of {2 * bare} or more",
        )
    filler: list[str] = []
    tokens, most = bare, length
    # What a sentence costs is only known in its place, so approach the length step by step.
    while most:
        average = (tokens - bare) / len(filler) if filler else float(length)
        step = min(max(int((length - tokens) / average), 1), most)
        longer = filler + [_sentence(case, wording, rng, len(filler) + i) for i in range(step)]
        found = len(render(case.text(longer) + case.question))
        if found <= length:
            filler, tokens = longer, found
        else:
            most = step // 2
    text = case.text(filler)
    ids = render(text + case.question)
    shared = _common_prefix(ids, render(text))
    return Prompt(ids=tuple(ids), text_tokens=shared, answers=case.answers)


def _sentence(case: Case, wording: Wording, rng: random.Random, index: int) -> str:
    if case.body:
        return case.body[index % len(case.body)]
    return wording.filler_sentence(rng)


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
