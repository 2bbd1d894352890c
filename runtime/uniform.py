"""Uniform numbers keyed on (seed, absolute position): the same in any order and grouping."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_POSITIONS = 256
"""Positions drawn at a time; one costs as much as all of them."""
_LANES = 4
"""64-bit numbers of one Philox counter, one for each purpose."""
DRAW, DRAFT, ACCEPT, RESIDUAL = range(_LANES)
"""Lanes: the token drawn from the target, the draft drawn, its test, and what replaces it."""


class PositionUniform:
    """Numbers in [0, 1) for each position and lane, from Philox with the seed as key."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._start = -1
        self._numbers: NDArray[np.float64] = np.empty((0, _LANES))

    def at(self, position: int, lane: int = DRAW) -> float:
        """The number of ``position`` in ``lane``, a multiple of 2**-53."""
        start = position - position % _POSITIONS
        if start != self._start:
            self._numbers, self._start = self._block(start), start
        return float(self._numbers[position - start, lane])

    def _block(self, start: int) -> NDArray[np.float64]:
        bits = np.random.Philox(key=self._seed, counter=start).random_raw(_POSITIONS * _LANES)
        return np.asarray(bits >> np.uint64(11)).reshape(_POSITIONS, _LANES) * 2.0**-53
