"""The rows of one slot in one step, as the verdict draws from them."""

from __future__ import annotations

from collections.abc import Sequence

from selfdraft.runtime.backend import BackboneOutput, Backend, OutputRow
from selfdraft.runtime.run import Run


class ChainRows:
    """Row i follows the first i drafts; the token of row 0 stands at absolute ``position``."""

    __slots__ = ("_backend", "_drafts", "_output", "_position", "_run", "_slot")

    def __init__(
        self,
        run: Run,
        backend: Backend,
        output: BackboneOutput,
        *,
        slot: int,
        position: int,
        drafts: Sequence[int],
    ) -> None:
        self._run, self._backend, self._output = run, backend, output
        self._slot, self._position = slot, position
        self._drafts = drafts

    def draw(self, row: int) -> int:
        """The target's token of row ``row``; call it in order."""
        run, output, slot = self._run, self._output, self._slot
        values, ids = output.top_values[slot, row], output.top_ids[slot, row]
        logits = OutputRow(self._backend, output.logits, slot, row)
        position = self._position + row
        if row < len(run.laws):
            token = run.sampler.draw_against(
                values,
                ids,
                position=position,
                row=logits,
                draft=self._drafts[row],
                draft_law=run.laws[row],
            )
        else:
            token = run.sampler.draw(values, ids, position=position, row=logits)
        if run.request.logprobs is not None:
            run.note_logprobs(token, logits.full(), values, ids)
        return token
