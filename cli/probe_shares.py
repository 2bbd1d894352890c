"""Shares of accepted drafts over sequences, and their differences, with intervals.

Rows of one sequence hang together, so intervals come from the spread between sequences
(a cluster-robust standard error), and never are narrower than those of independent rows would be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.baseline import wilson_interval

Z = 1.96
"""95 % of a normal law."""
Agreed = np.ma.MaskedArray[Any, np.dtype[np.bool_]]
"""``[N, T]``: whether a row's first draft was the token that the model chose there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share of rows with its 95 % interval."""

    value: float
    low: float
    high: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """First minus second share, with its 95 % interval."""

    value: float
    low: float
    high: float


def share_of(agreed: Agreed) -> Share:
    """Share of true rows."""
    rows = int(agreed.count())
    count = int(agreed.sum()) if rows else 0
    value = count / max(rows, 1)
    low, high = wilson_interval(count, rows)
    half = Z * _spread(_means(agreed))
    return Share(
        value=value, low=max(min(low, value - half), 0.0), high=min(max(high, value + half), 1.0), rows=rows
    )  # fmt: skip


def paired_difference(first: Agreed, second: Agreed) -> Difference:
    """Of two measurements over the same rows."""
    change: Any = first.astype(np.float64) - second.astype(np.float64)
    rows = int(change.count())
    if not rows:
        return Difference(value=0.0, low=0.0, high=0.0)
    independent = float(change.std()) / math.sqrt(rows)
    half = Z * max(_spread(_means(change)), independent)
    value = float(change.mean())
    return Difference(value=value, low=value - half, high=value + half)


def unpaired_difference(first: Agreed, second: Agreed) -> Difference:
    """Of measurements over different texts."""
    one, two = share_of(first), share_of(second)
    half = math.hypot((one.high - one.low) / 2, (two.high - two.low) / 2)
    value = one.value - two.value
    return Difference(value=value, low=value - half, high=value + half)


def known_difference(expected: float, agreed: Agreed) -> Difference:
    """Of a level that is given and a measurement."""
    found = share_of(agreed)
    return Difference(
        value=expected - found.value, low=expected - found.high, high=expected - found.low
    )


def _means(rows: Any) -> NDArray[np.float64]:
    """Of each sequence that has rows that count."""
    means: NDArray[np.float64] = np.ma.MaskedArray(rows.mean(axis=1)).compressed()
    return means


def _spread(means: NDArray[np.float64]) -> float:
    """Standard error of the mean over sequences; 0 where they are too few to tell."""
    return float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) >= 4 else 0.0
