"""Error messages of TensorRT, CUDA, ONNX Runtime and pip: what causes them, and what mends it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A message and its cause.

    ``pattern`` is searched in the text, without regard to case. ``example`` is the message as
    people report it. ``checks`` name the doctor's checks that tell more about this device.
    ``harmless``: the message looks like an error and is none.
    """

    name: str
    title: str
    pattern: str
    example: str
    cause: str
    mend: str
    kinds: tuple[int, ...] = ()
    checks: tuple[str, ...] = ()
    harmless: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """An explanation, and the line of the text that it explains."""

    explanation: Explanation
    line: str


def explain(text: str, explanations: Sequence[Explanation]) -> tuple[Match, ...]:
    """Every explanation that fits, in the order in which its message stands in ``text``; causes
    before what looks like an error and is none. The first is the one to begin with."""
    found: list[tuple[bool, int, Match]] = []
    for explanation in explanations:
        hit = re.search(explanation.pattern, text, re.IGNORECASE)
        if hit is not None:
            line = _line_at(text, hit.start())
            match = Match(explanation=explanation, line=line)
            found.append((explanation.harmless, hit.start(), match))
    found.sort(key=lambda item: item[:2])
    return tuple(match for _, _, match in found)


def _line_at(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[start : len(text) if end < 0 else end].strip()
