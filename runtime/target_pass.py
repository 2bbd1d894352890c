"""The target's part of a decode step: one pass over ``[x_n, d_1..d_K]`` of every active slot."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from selfdraft.runtime.attention_record import AttentionMode, BlockCounter
from selfdraft.runtime.backend import BackboneOutput, Backend, Step
from selfdraft.runtime.run import Run
from selfdraft.runtime.slot_range import SlotRange
from selfdraft.runtime.slots import SlotTable, StepArrays, VerifyPool
from selfdraft.runtime.step_audit import StepAudit

Drafts = Mapping[int, Sequence[int]]
"""Of each slot."""


class TargetPass:
    """Runs the target over drafts, and notes in each run what that read.

    ``least_rows`` pads every pass to so many rows.
    """

    def __init__(
        self,
        backend: Backend,
        slots: SlotTable,
        *,
        least_rows: int,
        audit: StepAudit | None,
    ) -> None:
        self._backend, self._slots = backend, slots
        self._least_rows = least_rows
        self._audit = audit
        self._blocks = BlockCounter(backend.manifest, backend=backend.name)
        self._arrays = VerifyPool()

    @property
    def mode(self) -> AttentionMode:
        """How decode steps attend."""
        return self._blocks.mode

    @property
    def audit_s(self) -> float:
        """Seconds that audits took so far."""
        return self._audit.seconds if self._audit else 0.0

    def run(
        self, span: SlotRange, runs: Mapping[int, Run], drafts: Drafts, *, num_rows: int
    ) -> tuple[BackboneOutput, int]:
        """The output of a pass over ``num_rows`` rows or more, and their number."""
        if self._audit:
            self._audit.run_dense(span, tuple(runs), [run.steps for run in runs.values()])
        arrays = self._fill(span, runs, drafts, max(num_rows, self._least_rows))
        output = self._backend.run_backbone(span.states, arrays.step, arrays.input_ids)
        for slot in runs:
            self._slots.note_pass(slot, int(arrays.step.row_count[slot - span.first]))
        self._record(arrays.step, runs, drafts, output)
        return output, arrays.input_ids.shape[1]

    def _fill(
        self, span: SlotRange, active: Collection[int], drafts: Drafts, num_rows: int
    ) -> StepArrays:
        slots = self._slots
        arrays = self._arrays.get(span.width, num_rows)
        counts = [0] * span.width
        for slot in active:
            rows = [slots.tokens[slot][-1], *drafts.get(slot, ())]
            arrays.input_ids[slot - span.first, : len(rows)] = rows
            counts[slot - span.first] = len(rows)
            slots.attend_all[slot] = 0
        arrays.fill(
            past_len=span.part(slots.cached),
            row_count=counts,
            attend_all=span.part(slots.attend_all),
        )
        return arrays

    def _record(
        self, step: Step, runs: Mapping[int, Run], drafts: Drafts, output: BackboneOutput
    ) -> None:
        blocks = self._blocks.count(step, output)
        for slot, run in runs.items():
            run.rows += len(drafts.get(slot, ())) + 1
            run.blocks_read += blocks.read
            run.blocks_in_use += blocks.in_use
        if self._audit:
            for slot, point in self._audit.compare(output, blocks).items():
                runs[slot].audit.append(point)
