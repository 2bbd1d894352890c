"""Drafts drawn at random, with the exact law that each was drawn from."""

from __future__ import annotations

from selfdraft.runtime.backend import FloatArray, IntArray
from selfdraft.runtime.distribution import Distribution, distribution_of_ranks
from selfdraft.runtime.sampling import SamplingLaw
from selfdraft.runtime.uniform import DRAFT, PositionUniform


class DrawnDrafts:
    """Draws the drafts of one step of one slot, from ``position`` on; a ``draft.Chooser``.

    q is the request's own law (temperature, top-k, top-p, min-p) on the head's candidates as if
    there were no other tokens: a token outside them, or outside a trimmed draft vocabulary, has
    q = 0. The arrays kept in ``laws`` are those drawn from, fp64, not a computation of the same.
    """

    def __init__(self, law: SamplingLaw, uniform: PositionUniform, *, position: int) -> None:
        self._law = law
        self._uniform = uniform
        self._position = position
        self.laws: list[Distribution] = []

    def __call__(self, values: FloatArray, ids: IntArray) -> int:
        """The next draft, from the head's sorted candidates ``values, ids [C]``."""
        law = distribution_of_ranks(values, ids.copy(), self._law, vocab_size=len(ids))
        assert law is not None, "candidates taken as everything tell their law"
        draft = law.draw(self._uniform.at(self._position + len(self.laws), DRAFT))
        self.laws.append(law)
        return draft
