"""Drafting with the MTP head: resync with the target, then a chain of its own proposals."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from selfdraft.runtime.backend import Backend, DeviceTensor, IntArray, MtpOutput, States
from selfdraft.runtime.slots import SlotTable, StepArrays, StepPool


class Drafter(Protocol):
    """Proposes tokens for the target to verify."""

    def catch_up(self, hidden: DeviceTensor, num_rows: int) -> object:
        """Take in the newest rows of the target: ``hidden [B, num_rows, H]`` of its last pass."""
        ...

    def propose(self, hidden: DeviceTensor, num_rows: int, depths: IntArray) -> IntArray:
        """Catch up, then draft ``depths [B]`` tokens: ``[B, K]``, valid until the next call."""
        ...


class MtpDrafter:
    """Chains of up to ``depth`` drafts from the single MTP head, fed with its own output.

    Row p of the head pairs the target's hidden state at p with token p + 1. Rows written by a
    chain lie behind ``drafter_cached`` and are overwritten by the next ``catch_up``.
    """

    def __init__(self, backend: Backend, states: States, slots: SlotTable, *, depth: int) -> None:
        self._backend = backend
        self._states = states
        self._slots = slots
        self._catch_up_arrays = StepPool(slots.batch)
        self._link = StepArrays(slots.batch, num_rows=1, num_logit_rows=1)
        self._drafts: IntArray = np.zeros((slots.batch, depth), dtype=np.int64)

    def catch_up(self, hidden: DeviceTensor, num_rows: int) -> MtpOutput:
        """Run the head over the rows that the target has and it has not.

        ``hidden [B, num_rows, H]`` of the target's last pass. The output's one row a slot is its
        newest one, whose draft is the first of the next step. Slots that are not live idle.
        """
        slots = self._slots
        arrays = self._catch_up_arrays.get(num_rows)
        step = arrays.step
        np.copyto(step.past_len, slots.drafter_cached)
        np.copyto(step.attend_all, slots.attend_all)
        np.subtract(slots.cached, slots.drafter_cached, out=step.row_count)
        np.multiply(step.row_count, slots.live, out=step.row_count)
        for slot, count in enumerate(step.row_count.tolist()):
            assert count <= num_rows, "the target ran twice without a catch-up"
            if count:
                start = int(slots.drafter_cached[slot]) + 1
                arrays.input_ids[slot, :count] = slots.tokens[slot][start : start + count]
                step.row_index[slot, 0] = count - 1
            else:
                step.row_index[slot, 0] = 0
        output = self._backend.run_mtp(self._states, step, arrays.input_ids, hidden)
        slots.drafter_cached += step.row_count
        return output

    def propose(self, hidden: DeviceTensor, num_rows: int, depths: IntArray) -> IntArray:
        """Drafts ``[B, K]``, the first ``depths[b]`` of each slot; valid until the next call."""
        output = self.catch_up(hidden, num_rows)
        step = self._link.step
        np.copyto(step.past_len, self._slots.drafter_cached)
        num_links = int(depths.max()) - 1
        for link in range(num_links):
            np.greater(depths, link + 1, out=step.row_count, casting="unsafe")
            following = self._backend.run_mtp(self._states, step, output.draft_ids, output.hidden)
            # Read only now: the next link runs meanwhile where the backend works ahead.
            self._drafts[:, link] = self._backend.to_host(output.draft_ids)[:, 0]
            output = following
            np.add(step.past_len, 1, out=step.past_len)
        self._drafts[:, num_links] = self._backend.to_host(output.draft_ids)[:, 0]
        return self._drafts
