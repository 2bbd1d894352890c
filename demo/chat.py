"""The record that every text generator returns, and small helpers for random choice."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Rng = random.Random


@dataclass(kw_only=True)
class Chat:
    """One dialogue: messages in order, and what a checker needs to judge the last reply.

    `key` names the combination of choices; it decides between the training and held-out splits.
    `thoughts` are sentences that may stand in the thinking of the last reply, and `cores` are
    those that name the result.
    """

    task: str
    key: str
    messages: list[dict[str, str]]
    keywords: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    cores: list[str] = field(default_factory=list)
    thinking: str | None = None
    thinking_budget: int | None = None
    cut: bool = False


Generator = Callable[[Rng], Chat]


def user(text: str) -> dict[str, str]:
    """A user message."""
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    """An assistant message."""
    return {"role": "assistant", "content": text}


def is_heldout(key: str) -> bool:
    """Whether the combination `key` is kept out of training (one in ten)."""
    return zlib.crc32(key.encode()) % 10 == 0


def fill(rng: Rng, templates: Sequence[str], **words: str) -> tuple[str, int]:
    """A random template with its fields filled in, and the template's index."""
    index = rng.randrange(len(templates))
    return templates[index].format(**words), index


def capitalise(text: str) -> str:
    """`text` with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def with_articles(text: str) -> str:
    """`text` with "an" in place of "a" before a vowel."""
    return re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", text)


ASK_PREFIXES = ["", "", "", "", "Hi! ", "Hello. ", "Please tell me: ", "Quick question: ",
                "I have a question. ", "Can you help me? ", "One more thing: "]  # fmt: skip

REPLY_OPENERS = ["", "", "", "", "", "Sure. ", "Of course. ", "Good question. ", "Gladly. ",
                 "That is an easy one. "]  # fmt: skip


def decorate(rng: Rng, question: str) -> str:
    """`question` with a random friendly prefix."""
    return rng.choice(ASK_PREFIXES) + question


def opened(rng: Rng, reply: str) -> str:
    """`reply` with a random opener in front."""
    return rng.choice(REPLY_OPENERS) + reply
