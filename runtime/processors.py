"""Changes to a row's logits before a token is drawn: the seam, and minimum length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Processor(Protocol):
    """Sees the rows of one sequence in order, each with the history before it."""

    @property
    def active(self) -> bool:
        """Whether the next row changes; an active processor costs the fetch of the full row."""
        ...

    def apply(self, row: NDArray[np.float64]) -> None:
        """Change the next row's logits ``[V]`` in place (``-inf`` bans a token)."""
        ...

    def advance(self, token: int) -> None:
        """``token`` follows; called once for each delivered token."""
        ...

    def clone(self) -> Processor:
        """A copy with a state of its own: to start a sequence, or to return to this point."""
        ...


class MinTokens:
    """Bans the tokens that end a reply until ``count`` tokens are delivered."""

    def __init__(self, count: int, end_ids: Sequence[int]) -> None:
        self._left = count
        self._end_ids = list(end_ids)

    @property
    def active(self) -> bool:
        return self._left > 0

    def apply(self, row: NDArray[np.float64]) -> None:
        row[self._end_ids] = -np.inf

    def advance(self, token: int) -> None:
        self._left -= self._left > 0

    def clone(self) -> MinTokens:
        return MinTokens(self._left, self._end_ids)
