"""What processors change: the logits of one row, whole or as far as its candidates reach.

A row of V logits is known by its C sorted candidates, and a view of these is cheap. The rules are
made so that a processor never sees the difference: what it does to the tokens of the view it does,
as far as that can matter, to the row. Two things keep this exact:

- A logit outside the view may only fall. Tokens that a processor may raise are its ``wanted_ids``,
  and these are part of the view from the start, with their own logits.
- So each logit outside stays at or below the last candidate's. The tokens of the view that rank
  above that bound are certain to lead the processed row; ``ranked`` gives those and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatRow = NDArray[np.floating[Any]]
IdRow = NDArray[np.int64]
Entries = Callable[[IdRow], FloatRow]
"""Gives the unprocessed logits of single tokens."""


class Ranked(NamedTuple):
    """The leading tokens of a processed row, by descending logit, equal logits by ascending id."""

    values: NDArray[np.float64]
    ids: IdRow
    bound: float
    """No token outside has a logit above this one."""
    vocab_size: int
    """Tokens that may have any probability, those outside included."""


class RowView:
    """Logits that processors change in place: ``values[i]`` is the logit of token ``ids[i]``.

    The full row has ``ids`` None, and ``values [V]``. Use ``take`` to look up something that is
    kept for each token of the vocabulary; both kinds then read alike.
    """

    __slots__ = ("_bound", "_last_id", "_vocab_size", "ids", "values")

    def __init__(
        self,
        values: NDArray[np.float64],
        ids: IdRow | None,
        *,
        vocab_size: int,
        bound: float = -np.inf,
        last_id: int = -1,
    ) -> None:
        self.values = values
        self.ids = ids
        self._vocab_size = vocab_size
        self._bound, self._last_id = bound, last_id

    def take(self, per_token: NDArray[Any]) -> NDArray[Any]:
        """Entries of ``per_token [V]`` that belong to ``values``."""
        return per_token if self.ids is None else per_token[self.ids]

    def ban(self, tokens: Iterable[int]) -> None:
        """Make a few tokens impossible."""
        if self.ids is None:
            self.values[list(tokens)] = -np.inf
            return
        for token in tokens:
            self.values[self.ids == token] = -np.inf

    def ban_where(self, banned: NDArray[np.bool_]) -> None:
        """Make every token impossible for which ``banned [V]`` is true."""
        self.values[self.take(banned)] = -np.inf

    def keep_where(self, allowed: NDArray[np.bool_], *, num_allowed: int | None = None) -> None:
        """Make every token impossible for which ``allowed [V]`` is false.

        ``num_allowed``, the number of true entries: where all of them are in the view, nothing
        outside it is left.
        """
        kept = self.take(allowed)
        self.values[~kept] = -np.inf
        if self.ids is not None and num_allowed == np.count_nonzero(kept):
            self._forget_outside()

    def force(self, token: int, *, despite_bans: bool = False) -> None:
        """Leave ``token``, one of the ``wanted_ids``, as the only possible one.

        Where a processor before this one banned it, no token is left, unless ``despite_bans``.
        """
        if self.ids is None:
            value = self.values[token]
            self.values[:] = -np.inf
            self.values[token] = 0.0 if despite_bans else value
            return
        forced = self.ids == token
        assert forced.any(), "a token that is to be forced must be wanted"
        self.ids, self.values = self.ids[forced], self.values[forced]
        if despite_bans:
            self.values[:] = 0.0  # the only one left is certain, whatever its logit
        self._forget_outside()

    def ranked(self) -> Ranked:
        """The tokens of the view that certainly lead the processed row; maybe none."""
        assert self.ids is not None, "a full row is ranked by the sampler"
        order = np.lexsort((self.ids, -self.values))
        values, ids = self.values[order], self.ids[order]
        if self._bound == -np.inf:
            return Ranked(values, ids, -np.inf, len(ids))
        certain = (values > self._bound) | ((values == self._bound) & (ids <= self._last_id))
        count = int(np.count_nonzero(certain))
        return Ranked(values[:count], ids[:count], self._bound, self._vocab_size)

    def _forget_outside(self) -> None:
        self._bound = -np.inf


def full_view(row: FloatRow) -> RowView:
    """A view of all of ``row [V]``, on a copy of its own."""
    return RowView(row.astype(np.float64), None, vocab_size=len(row))


def candidate_view(
    values: FloatRow, ids: IdRow, wanted: Sequence[int], *, vocab_size: int, entries: Entries
) -> RowView:
    """A view of the sorted candidates ``values, ids [C]`` of a row, and of the ``wanted`` tokens.

    ``entries`` is asked for the logits of wanted tokens that are no candidates.
    """
    bound, last_id = float(values[-1]), int(ids[-1])
    known, known_ids = values.astype(np.float64), ids
    if wanted:
        extra = np.setdiff1d(np.asarray(wanted, dtype=np.int64), ids)
        if len(extra):
            known = np.concatenate([known, entries(extra).astype(np.float64)])
            known_ids = np.concatenate([ids, extra])
    if len(known_ids) == vocab_size:
        bound = -np.inf
    return RowView(known, known_ids, vocab_size=vocab_size, bound=bound, last_id=last_id)
