"""Checking decode steps against dense attention while they run.

Before a step, its first row runs once more with every block; then the step itself runs as ever.
It writes the same cache slots and recomputes the summaries that it touches, so nothing of the
dense row stays, as nothing of a rejected draft does: an audit changes no token.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from selfdraft.errors import ConfigError, DeviceError
from selfdraft.runtime.attention_record import BlockCounter, StepBlocks, sparse_layers
from selfdraft.runtime.backend import BackboneOutput, Backend, FloatArray
from selfdraft.runtime.divergence import divergence
from selfdraft.runtime.slot_range import SlotRange
from selfdraft.runtime.slots import SlotTable, StepPool

REWRITTEN = ("kv", "summary")
"""Kinds of states in which a row that runs again replaces what it wrote before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPoint:
    """One decode step against dense attention."""

    position: int
    """Absolute position of the row compared."""
    kl: float
    """KL(dense || sparse) of its next-token distribution, in nats."""
    same_top: bool
    """Both find the same token likeliest."""
    blocks_read: int
    """By the sparse step, summed over the sparse layers, as the engine counted."""
    blocks_in_use: int
    """By the dense row: the engine was seen to read every block."""


class StepAudit:
    """Compares every ``every``-th decode step of each slot. Raises ``ConfigError``."""

    def __init__(self, backend: Backend, slots: SlotTable, *, every: int) -> None:
        if every < 1:
            raise ConfigError(f"audit_every is {every}", hint="give it a value from 1")
        if not sparse_layers(backend.manifest):
            raise ConfigError(
                "audit_every compares sparse with dense attention, and every layer of this "
                "bundle is dense",
                hint="leave it out, or export with --attention sparse",
            )
        carried = {
            state.kind
            for graph in backend.manifest.graphs.values()
            for state in graph.states
            if state.kind not in REWRITTEN
        }
        if carried:
            raise ConfigError(
                f"audit_every runs rows twice; states of kind {', '.join(sorted(carried))} "
                "do not forget the first",
                hint="leave it out; selfdraft audit compares on caches of its own",
            )
        self._backend = backend
        self._blocks = BlockCounter(backend.manifest, backend=backend.name)
        self._slots = slots
        self._every = every
        self._pool = StepPool()
        self._dense: dict[int, FloatArray] = {}
        self.seconds = 0.0
        """Time spent so far."""

    def run_dense(self, span: SlotRange, active: Sequence[int], steps: Sequence[int]) -> None:
        """Run the first row of the coming step densely in every slot that is due.

        ``active`` slots of ``span`` and the ``steps`` each has taken. Call it right before the step.
        """
        due = [s for s, taken in zip(active, steps, strict=True) if taken % self._every == 0]
        self._dense = {}
        if not due:
            return
        started = time.perf_counter()
        arrays = self._pool.get(span.width, 1)
        for slot in due:
            arrays.input_ids[slot - span.first, 0] = self._slots.tokens[slot][-1]
        step = arrays.fill(
            past_len=span.part(self._slots.cached),
            row_count=[int(slot in due) for slot in span.slots],
            attend_all=[1] * span.width,
        )
        output = self._backend.run_backbone(span.states, step, arrays.input_ids)
        self._check_dense(self._blocks.count(step, output))
        rows = self._backend.read_rows(output.logits, [(slot - span.first, 0) for slot in due])
        self._dense = dict(zip(due, rows, strict=True))
        self._span = span
        self.seconds += time.perf_counter() - started

    def _check_dense(self, blocks: StepBlocks) -> None:
        """The dense row must have read everything, or the comparison would prove nothing."""
        if blocks.read != blocks.in_use:
            raise DeviceError(
                f"the audit asked for all {blocks.in_use} blocks, the engine read {blocks.read}",
                hint="export the bundle again; if it fails again, report this",
            )

    def compare(self, output: BackboneOutput, blocks: StepBlocks) -> dict[int, AuditPoint]:
        """The step's ``output`` and its ``blocks`` against what ``run_dense`` found, by slot."""
        if not self._dense:
            return {}
        started = time.perf_counter()
        first = self._span.first
        sparse = self._backend.read_rows(output.logits, [(s - first, 0) for s in self._dense])
        points = {}
        for (slot, dense), row in zip(self._dense.items(), sparse, strict=True):
            found = divergence(dense, row)
            position = len(self._slots.tokens[slot]) - 1
            points[slot] = AuditPoint(
                position=position,
                kl=found.kl,
                same_top=found.same_top,
                blocks_read=blocks.read,
                blocks_in_use=blocks.in_use,
            )
        self.seconds += time.perf_counter() - started
        return points
