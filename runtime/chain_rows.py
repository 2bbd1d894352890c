"""The rows of one slot in one step, as the verdict draws from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selfdraft.runtime.backend import BackboneOutput, Backend, FloatArray, IntArray
from selfdraft.runtime.run import Run


class ChainRows:
    """Row i follows the first i drafts; the token of row 0 stands at absolute ``position``.

    ``place`` is the slot's in the pass. While a row is drawn from, the object stands for its logits (``row_sampler.LogitRow``), which stay
    with the backend until they are asked for.
    """

    __slots__ = ("_backend", "_drafts", "_index", "_output", "_place", "_position", "_run")

    def __init__(
        self,
        run: Run,
        backend: Backend,
        output: BackboneOutput,
        place: int,
        position: int,
        drafts: Sequence[int],
    ) -> None:
        self._run, self._backend, self._output = run, backend, output
        self._place, self._position, self._drafts = place, position, drafts
        self._index = 0

    def draw(self, row: int) -> int:
        """The target's token of row ``row``; call it in order."""
        run, output, place = self._run, self._output, self._place
        self._index = row
        values, ids = output.top_values[place, row], output.top_ids[place, row]
        position = self._position + row
        if row < len(run.laws):
            token = run.sampler.draw_against(
                values,
                ids,
                position=position,
                row=self,
                draft=self._drafts[row],
                draft_law=run.laws[row],
            )
        else:
            token = run.sampler.draw(values, ids, position=position, row=self)
        if run.request.logprobs is not None:
            run.note_logprobs(token, self.full(), values, ids)
        return token

    def full(self) -> FloatArray:
        """Host copy ``[V]`` of the row's logits."""
        rows = self._backend.read_rows(self._output.logits, [(self._place, self._index)])
        return np.asarray(rows[0])

    def entries(self, ids: IntArray) -> FloatArray:
        """Host copy of the logits of ``ids``."""
        row = (self._place, self._index)
        return self._backend.read_entries(self._output.logits, row, ids)
