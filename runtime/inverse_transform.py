"""What ranked candidates tell about a row's law: the rank drawn, the ranks kept, a rank's share.

Or that they do not tell it, because tokens outside them might matter.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from selfdraft.runtime.sampling import SamplingLaw


class Interval(NamedTuple):
    """A number known to lie between ``low`` and ``high``."""

    low: float
    high: float


def draw_rank(
    values: NDArray[np.floating[Any]],
    law: SamplingLaw,
    uniform: float,
    *,
    vocab_size: int,
    normaliser: float | None = None,
    bound: float | None = None,
) -> int | None:
    """Rank that ``uniform`` draws from a row whose ``values [C]`` lead it, sorted descending.

    None when tokens outside the candidates might change the result. Their logits are at most
    ``bound`` (by default the last candidate's), so their mass lies between 0 and ``(V - C)`` times
    the weight of that, and is known where ``normaliser`` (the sum of
    ``exp((logit - values[0]) / temperature)`` over the row) is given. Every number that decides is
    an interval; the answer is given only where both ends agree, so it is the one of the full row.
    With ``C = V`` there is always an answer: it defines the law.
    """
    known = _known(values, law, vocab_size, bound, normaliser)
    count, kept_mass, mass = known.num_kept, known.kept_mass, known.mass
    low = int(mass.searchsorted(uniform * kept_mass.low, side="right"))
    if count.high > len(mass) or count.low != count.high:
        high = int(mass.searchsorted(uniform * kept_mass.high, side="right"))
        return low if low == high < min(len(mass), count.low) else None
    # Rounding may carry the draw past the kept mass: the last token with any mass takes it.
    last = int(np.count_nonzero(known.weights[: int(count.low)])) - 1
    return min(low, last)


def kept_ranks(
    values: NDArray[np.floating[Any]],
    law: SamplingLaw,
    *,
    vocab_size: int,
    normaliser: float | None = None,
    bound: float | None = None,
) -> NDArray[np.float64] | None:
    """Weights of the ranks that top-k, top-p and min-p keep; None where tokens outside may count.

    Arguments as in ``draw_rank``.
    """
    known = _known(values, law, vocab_size, bound, normaliser)
    if known.num_kept.high > len(known.mass) or known.num_kept.low != known.num_kept.high:
        return None
    return known.weights[: int(known.num_kept.low)]


def share_of_rank(
    values: NDArray[np.floating[Any]],
    law: SamplingLaw,
    rank: int,
    *,
    vocab_size: int,
    bound: float | None = None,
) -> Interval:
    """Bounds of the probability of one rank. Arguments as in ``draw_rank``."""
    known = _known(values, law, vocab_size, bound, None)
    weight = float(known.weights[rank]) if rank < len(known.weights) else 0.0
    low = weight / known.kept_mass.high if rank < known.num_kept.low else 0.0
    high = weight / known.kept_mass.low if rank < known.num_kept.high else 0.0
    return Interval(low, high)


class _Known(NamedTuple):
    """What the candidates tell about the kept ranks."""

    weights: NDArray[np.float64]
    mass: NDArray[np.float64]
    num_kept: Interval
    kept_mass: Interval


def _known(
    values: NDArray[np.floating[Any]],
    law: SamplingLaw,
    vocab_size: int,
    bound: float | None,
    normaliser: float | None,
) -> _Known:
    num_kept = min(law.top_k or vocab_size, vocab_size)
    num_known = min(num_kept, len(values))
    outside = num_kept - num_known
    logits = values[:num_known].astype(np.float64)
    weights = np.exp((logits - logits[0]) / law.temperature)
    mass = np.cumsum(weights)
    margin = vocab_size * 2.0**-50 if outside else 0.0
    largest = float(weights[-1])
    if bound is not None and outside:
        largest = math.exp((bound - float(logits[0])) / law.temperature)
    total = _total(mass, largest, outside, margin, normaliser if not law.top_k else None)
    count = _kept_count(weights, mass, law, outside, total)
    return _Known(weights, mass, count, _kept_mass(mass, count, num_known + outside, total))


def _total(
    mass: NDArray[np.float64],
    last_weight: float,
    outside: int,
    margin: float,
    normaliser: float | None,
) -> Interval:
    """Mass of everything that top-k keeps."""
    known = float(mass[-1])
    if not outside:
        return Interval(known, known)
    if normaliser is not None:
        return Interval(max(known, normaliser * (1 - margin)), normaliser * (1 + margin))
    return Interval(known, (known + outside * last_weight) * (1 + margin))


def _kept_count(
    weights: NDArray[np.float64],
    mass: NDArray[np.float64],
    law: SamplingLaw,
    outside: int,
    total: Interval,
) -> Interval:
    """Number of ranks kept after top-p and min-p."""
    num_known = len(mass)
    low = high = num_known + outside
    if law.top_p < 1:
        low = min(low, int(mass.searchsorted(law.top_p * total.low)) + 1)
        # Past the candidates this says one rank beyond them: not known.
        high = min(high, int(mass.searchsorted(law.top_p * total.high)) + 1)
    if law.min_p > 0:
        above = int(np.count_nonzero(weights >= law.min_p))
        low = min(low, above)
        high = min(high, above) if above < num_known else high
    return Interval(low, high)


def _kept_mass(
    mass: NDArray[np.float64], count: Interval, num_all: int, total: Interval
) -> Interval:
    """Mass of the kept ranks."""
    num_known = len(mass)
    low = total.low if count.low >= num_all else float(mass[min(int(count.low), num_known) - 1])
    high = total.high if count.high > num_known else float(mass[int(count.high) - 1])
    return Interval(low, high)
