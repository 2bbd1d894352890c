"""Drafting with the MTP head: resync with the target, then a chain of its own proposals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from selfdraft.runtime.backend import (
    Backend,
    DeviceTensor,
    FloatArray,
    IntArray,
    MtpOutput,
    States,
)
from selfdraft.runtime.slots import SlotTable, StepArrays, StepPool

Chooser = Callable[[FloatArray, IntArray], int]
"""Picks a draft from the head's sorted candidates ``values, ids [C]``; called link by link."""


class Drafter(Protocol):
    """Proposes tokens for the target to verify."""

    def catch_up(self, hidden: DeviceTensor, num_rows: int) -> object:
        """Take in the newest rows of the target: ``hidden [B, num_rows, H]`` of its last pass."""
        ...

    def propose(
        self,
        hidden: DeviceTensor,
        num_rows: int,
        depths: Sequence[int],
        choosers: Mapping[int, Chooser] | None = None,
    ) -> list[list[int]]:
        """Catch up, then draft ``depths[b]`` tokens for each slot b.

        Drafts are the likeliest tokens, but for slots that have a chooser.
        """
        ...


class MtpDrafter:
    """Chains of drafts from the single MTP head, fed with its own output.

    Row p of the head pairs the target's hidden state at p with token p + 1. Rows written by a
    chain lie behind ``drafter_cached`` and are overwritten by the next ``catch_up``.
    """

    def __init__(self, backend: Backend, states: States, slots: SlotTable) -> None:
        self._backend = backend
        self._states = states
        self._slots = slots
        self._catch_up_arrays = StepPool(slots.batch)
        self._link = StepArrays(slots.batch, num_rows=1, num_logit_rows=1)
        self._all_sparse = [0] * slots.batch

    def catch_up(self, hidden: DeviceTensor, num_rows: int) -> MtpOutput:
        """Run the head over the rows that the target has and it has not.

        ``hidden [B, num_rows, H]`` of the target's last pass. The output's one row a slot is its
        newest one, whose draft is the first of the next step. Slots that are not live idle.
        """
        slots = self._slots
        arrays = self._catch_up_arrays.get(num_rows)
        counts = [0] * slots.batch
        for slot, live in enumerate(slots.live):
            start, end = slots.drafter_cached[slot], slots.cached[slot]
            if not live or start == end:
                continue
            assert end - start <= num_rows, "the target ran twice without a catch-up"
            counts[slot] = end - start
            arrays.input_ids[slot, : end - start] = slots.tokens[slot][start + 1 : end + 1]
        arrays.ask_last_rows(counts)
        step = arrays.fill(
            past_len=slots.drafter_cached, row_count=counts, attend_all=slots.attend_all
        )
        output = self._backend.run_mtp(self._states, step, arrays.input_ids, hidden)
        for slot, count in enumerate(counts):
            slots.drafter_cached[slot] += count
        return output

    def propose(
        self,
        hidden: DeviceTensor,
        num_rows: int,
        depths: Sequence[int],
        choosers: Mapping[int, Chooser] | None = None,
    ) -> list[list[int]]:
        """The first ``depths[b]`` drafts of each slot b."""
        output = self.catch_up(hidden, num_rows)
        chains: list[list[int]] = [[] for _ in depths]
        for link in range(1, max(depths)):
            step = self._link.fill(
                past_len=[cached + link - 1 for cached in self._slots.drafter_cached],
                row_count=[int(depth > link) for depth in depths],
                attend_all=self._all_sparse,
            )
            fed = self._chosen(output, chains, depths, choosers) if choosers else output.draft_ids
            following = self._backend.run_mtp(self._states, step, fed, output.hidden)
            # Read only now: the next link runs meanwhile where the backend works ahead.
            if not choosers:
                self._lengthen(chains, depths, self._backend.to_host(output.draft_ids))
            output = following
        if choosers:
            self._chosen(output, chains, depths, choosers)
        else:
            self._lengthen(chains, depths, self._backend.to_host(output.draft_ids))
        return chains

    def _chosen(
        self,
        output: MtpOutput,
        chains: list[list[int]],
        depths: Sequence[int],
        choosers: Mapping[int, Chooser],
    ) -> IntArray:
        """The drafts of one link ``[B, 1]``, added to the chains that want one more."""
        ids = np.array(self._backend.to_host(output.draft_ids))
        for slot, chooser in choosers.items():
            if len(chains[slot]) < depths[slot]:
                ids[slot, 0] = chooser(output.top_values[slot, 0], output.top_ids[slot, 0])
        self._lengthen(chains, depths, ids)
        return ids

    def _lengthen(
        self, chains: list[list[int]], depths: Sequence[int], draft_ids: IntArray
    ) -> None:
        """Add the newest draft to the chain of each slot that wants one more."""
        for slot, drafts in enumerate(draft_ids.tolist()):  # [B, 1]
            if len(chains[slot]) < depths[slot]:
                chains[slot] += drafts
