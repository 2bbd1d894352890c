"""The whole law of one row, written out: what drafts are drawn from and tested against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.runtime.inverse_transform import kept_ranks
from selfdraft.runtime.sampling import SamplingLaw


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """Probabilities, fp64, of the tokens ``ids``; ids None: of all V tokens. Others have none."""

    ids: NDArray[np.int64] | None
    shares: NDArray[np.float64]

    def of(self, token: int) -> float:
        """Probability of ``token``."""
        if self.ids is None:
            return float(self.shares[token])
        return float(self.shares[self.ids == token].sum())

    def draw(self, uniform: float) -> int:
        """Token by inverse transform; ``uniform`` in [0, 1)."""
        return self._token(_drawn(self.shares, uniform))

    def draw_residual(self, other: Distribution, uniform: float) -> int:
        """Token drawn from ``norm(max(self - other, 0))``.

        That has mass wherever a draft of ``other`` can be rejected. Should rounding leave none,
        the two laws are the same to the last bit and the token is drawn from this one.
        """
        left = np.maximum(self._minus(other), 0.0)
        return self._token(_drawn(left if left.any() else self.shares, uniform))

    def _token(self, index: int) -> int:
        return index if self.ids is None else int(self.ids[index])

    def _minus(self, other: Distribution) -> NDArray[np.float64]:
        if self.ids is None and other.ids is not None:
            left: NDArray[np.float64] = self.shares.copy()
            left[other.ids] -= other.shares
            return left
        if self.ids is None:
            return np.subtract(self.shares, other.shares)
        if other.ids is None:
            return np.subtract(self.shares, other.shares[self.ids])
        theirs = dict(zip(other.ids.tolist(), other.shares.tolist(), strict=True))
        return np.subtract(self.shares, [theirs.get(token, 0.0) for token in self.ids.tolist()])


def certain(token: int) -> Distribution:
    """The law of a draft that was not drawn: ``token`` has it all."""
    return Distribution(np.array([token], dtype=np.int64), np.ones(1))


def distribution_of_ranks(
    values: NDArray[np.floating[Any]],
    ids: NDArray[np.int64],
    law: SamplingLaw,
    *,
    vocab_size: int,
    bound: float | None = None,
    normaliser: float | None = None,
) -> Distribution | None:
    """The law of a row whose sorted ``values, ids`` lead it; None where they do not tell it.

    Arguments as in ``draw_rank``.
    """
    if law.greedy:
        return certain(int(ids[0]))
    kept = kept_ranks(values, law, vocab_size=vocab_size, bound=bound, normaliser=normaliser)
    if kept is None:
        return None
    return Distribution(ids[: len(kept)], kept / kept.sum())


def distribution_of_row(row: NDArray[np.float64], law: SamplingLaw) -> Distribution | None:
    """The law over a whole row where that needs no ranking; None with top-k or top-p."""
    if law.top_k or law.top_p < 1:
        return None
    weights = np.exp((row - row.max()) / law.temperature)
    if law.min_p > 0:
        weights[weights < law.min_p] = 0.0
    return Distribution(None, weights / weights.sum())


def _drawn(weights: NDArray[np.float64], uniform: float) -> int:
    mass = np.cumsum(weights)
    index = int(mass.searchsorted(uniform * mass[-1], side="right"))
    # Rounding may carry the draw past the end: the last token with any mass takes it.
    return min(index, int(np.flatnonzero(weights)[-1]))
