"""The end of a step for one slot: its rows are judged, and what is delivered is committed."""

from __future__ import annotations

from collections.abc import Sequence

from selfdraft.runtime.backend import BackboneOutput, Backend
from selfdraft.runtime.chain_rows import ChainRows
from selfdraft.runtime.result import TokenEvent
from selfdraft.runtime.run import Run
from selfdraft.runtime.slot_range import SlotRange
from selfdraft.runtime.slots import SlotTable
from selfdraft.runtime.telemetry.meter import Telemetry
from selfdraft.runtime.verify import Verdict


class Judge:
    """Applies ``verdict`` to the rows of single slots; ``telemetry`` is told of replies that end."""

    def __init__(
        self,
        backend: Backend,
        slots: SlotTable,
        *,
        verdict: Verdict,
        telemetry: Telemetry | None,
    ) -> None:
        self._backend, self._slots, self._telemetry = backend, slots, telemetry
        self.verdict = verdict

    def deliver(
        self, slot: int, run: Run, output: BackboneOutput, span: SlotRange, drafts: Sequence[int]
    ) -> list[TokenEvent]:
        """Judge the rows of ``slot``, commit its tokens, and free it where the reply has ended."""
        tokens = self._slots.tokens[slot]
        position = len(tokens)
        rows = ChainRows(run, self._backend, output, slot - span.first, position, drafts)
        chain = self.verdict(rows.draw, drafts, position=position, ends=run.ends())
        tokens += chain.tokens
        events = run.deliver(chain, slot=slot)
        if run.finish_reason is not None:
            if self._telemetry:
                run.count_reply(self._telemetry)
            self._slots.live[slot] = False
            length = run.first_position + len(run.tokens)
            if length < len(tokens):  # a stop string, whose tokens are not delivered
                self._slots.truncate(slot, length)
        return events
