"""Thinking tags and wrap-up sentences as text, turned into tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfdraft.errors import ConfigError
from selfdraft.runtime.thinking import Thinking, ThinkTags

if TYPE_CHECKING:
    from selfdraft.runtime.tokenizer import Tokenizer

KNOWN_TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""Pairs that public checkpoints have as tokens of their own."""


def known_tags(tokenizer: Tokenizer) -> ThinkTags | None:
    """The first known pair that the tokenizer has; None where it has none."""
    for start, end in KNOWN_TAGS:
        ids = tokenizer.id_of(start), tokenizer.id_of(end)
        if ids[0] is not None and ids[1] is not None:
            return ThinkTags(start_ids=(ids[0],), end_ids=(ids[1],))
    return None


def think_tags(
    tokenizer: Tokenizer, *, start: str | None = None, end: str | None = None
) -> ThinkTags:
    """Tags given as text, of one token or several; for a None the tokenizer's own.

    Raises ``ConfigError`` where it has none.
    """
    known = known_tags(tokenizer)
    if known is None and (start is None or end is None):
        spellings = ", ".join(pair[0] for pair in KNOWN_TAGS)
        raise ConfigError(
            f"the tokenizer has none of the thinking tags known ({spellings})",
            hint="give both: --think-start TEXT --think-end TEXT",
        )
    return ThinkTags(
        start_ids=known.start_ids if known and start is None else _ids(tokenizer, start or ""),
        end_ids=known.end_ids if known and end is None else _ids(tokenizer, end or ""),
    )


def thinking_from_text(
    tokenizer: Tokenizer,
    budget: int,
    *,
    start: str | None = None,
    end: str | None = None,
    wrap_up: str = "",
) -> Thinking:
    """A budget with its tags and its wrap-up sentence. Raises ``ConfigError``."""
    return Thinking(
        budget=budget,
        tags=think_tags(tokenizer, start=start, end=end),
        wrap_up_ids=tuple(tokenizer.encode(wrap_up, add_special_tokens=False)),
    )


def _ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    # A tag that is a token counts as that token, whatever the splitting rules make of the text.
    known = tokenizer.id_of(text)
    return (
        (known,) if known is not None else tuple(tokenizer.encode(text, add_special_tokens=False))
    )
