"""How many drafts a bundle's own text accepts: what alerts compare a running model with.

``selfdraft.export`` measures it and writes it into the manifest, ``selfdraft.runtime`` reads it; this
module stands between them and imports nothing heavy. Record types are frozen dataclasses of whole
numbers and texts, so that the manifest's strict reader takes them as they are.

Counts are those of vLLM's counters: of the steps that drafted a token at draft position i (0 is the
first of a chain) ``drafted[i]``, of these ``accepted[i]`` accepted it **and every draft before it**. A
draft behind the first rejection counts as drafted and not as accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

DEFAULT_TASK = "default"
"""Label of requests that name no task, and of a baseline whose text is of no particular kind."""
FIRST_BUCKET = 4096
"""Tokens of the first bucket of absolute positions; each further one ends at twice the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCounts:
    """Drafted and accepted tokens at each draft position. Raises ``ValueError`` for impossible ones."""

    drafted: tuple[int, ...]
    accepted: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.drafted) != len(self.accepted):
            raise ValueError(
                f"{len(self.drafted)} positions drafted, {len(self.accepted)} accepted"
            )
        if any(not 0 <= a <= d for a, d in zip(self.accepted, self.drafted, strict=True)):
            raise ValueError(f"accepted {self.accepted} of drafted {self.drafted}")
        if any(list(c) != sorted(c, reverse=True) for c in (self.drafted, self.accepted)):
            raise ValueError("a later draft was drafted or accepted without those before it")

    def rate(self, position: int | None = None) -> float | None:
        """Accepted by drafted tokens, at one draft position or (None) over all; None without drafts."""
        accepted, drafted = self.trials(position)
        return accepted / drafted if drafted else None

    def interval(
        self, position: int | None = None, *, confidence: float = 0.95
    ) -> tuple[float, float]:
        """Wilson's interval of that rate."""
        return wilson_interval(*self.trials(position), confidence=confidence)

    def trials(self, position: int | None = None) -> tuple[int, int]:
        """Accepted and drafted tokens at one draft position, or (None) at all of them."""
        if position is None:
            return sum(self.accepted), sum(self.drafted)
        if position >= len(self.drafted):
            return 0, 0
        return self.accepted[position], self.drafted[position]


def sum_counts(parts: Iterable[DraftCounts]) -> DraftCounts:
    """All counts together; chains may differ in length."""
    kept = list(parts)
    return DraftCounts(
        drafted=tuple(map(sum, zip_longest(*(p.drafted for p in kept), fillvalue=0))),
        accepted=tuple(map(sum, zip_longest(*(p.accepted for p in kept), fillvalue=0))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketCounts:
    """Steps whose first token stands at an absolute position in ``[start, end)``, prompt included."""

    start: int
    end: int
    counts: DraftCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBaseline:
    """One kind of text."""

    task: str
    counts: DraftCounts
    buckets: tuple[BucketCounts, ...]
    """The same steps by absolute position, in order; buckets without steps are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Acceptance of a bundle at temperature 0, as measured when it was made."""

    text: str
    """Name of the calibration text."""
    text_sha256: str
    tokens: int
    method: Literal["decoded", "teacher_forced"]
    """Steps of the decode loop, or one step from every position of the text, with the text's tokens."""
    tasks: tuple[TaskBaseline, ...]

    def counts(self, task: str | None = None) -> DraftCounts:
        """Of one task; of all where ``task`` is None or was not measured."""
        return sum_counts(part.counts for part in self._parts(task))

    def bucket(self, index: int, task: str | None = None) -> DraftCounts:
        """The same within bucket ``index`` of ``bucket_of``; no drafts where none were measured."""
        start = bucket_range(index)[0]
        return sum_counts(
            bucket.counts
            for part in self._parts(task)
            for bucket in part.buckets
            if bucket.start == start
        )

    def _parts(self, task: str | None) -> tuple[TaskBaseline, ...]:
        own = tuple(part for part in self.tasks if part.task == task)
        return own or self.tasks


def bucket_of(position: int) -> int:
    """Bucket of an absolute position: 0-4K, 4-8K, 8-16K, 16-32K, 32-64K, 64-128K, …"""
    return (position // FIRST_BUCKET).bit_length()


def bucket_range(index: int) -> tuple[int, int]:
    """First position of a bucket, and the first one behind it."""
    return (FIRST_BUCKET << (index - 1) if index else 0), FIRST_BUCKET << index


def bucket_label(index: int) -> str:
    """A bucket's name, e.g. ``0-4K`` or ``64K-128K``."""
    start, end = (bound // 1024 for bound in bucket_range(index))
    return f"{start}K-{end}K" if start else f"0-{end}K"


def wilson_interval(
    accepted: int, drafted: int, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Wilson's score interval of a share (E. B. Wilson, 1927), without continuity correction.

    It covers the true share about as often as ``confidence`` says, near 0 and 1 too. ``(0, 1)``
    without trials.
    """
    from statistics import NormalDist

    if not drafted:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share, spread = accepted / drafted, z * z / drafted
    middle = (share + spread / 2) / (1 + spread)
    half = (spread * share * (1 - share) + spread * spread / 4) ** 0.5 / (1 + spread)
    return max(middle - half, 0.0), min(middle + half, 1.0)
