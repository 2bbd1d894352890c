"""Drafting with the MTP head: resync with the target, then a chain of its own proposals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import numpy as np

from selfdraft.runtime.backend import Backend, FloatArray, IntArray, MtpOutput
from selfdraft.runtime.slot_range import TapRows
from selfdraft.runtime.slots import SlotTable, StepPool

Chooser = Callable[[FloatArray, IntArray], int]
"""Picks a draft from the head's sorted candidates ``values, ids [C]``; called link by link."""


class Drafter(Protocol):
    """Proposes tokens for the target to verify."""

    def catch_up(self, rows: TapRows, slots: Iterable[int], *, leave: int = 0) -> object:
        """Take in the newest ``rows`` of the target for these slots, but for the last ``leave``."""
        ...

    def propose(
        self,
        rows: TapRows,
        depths: Mapping[int, int],
        choosers: Mapping[int, Chooser] | None = None,
    ) -> dict[int, list[int]]:
        """Catch up, then draft ``depths[slot]`` tokens for each slot.

        Drafts are the likeliest tokens, but for slots that have a chooser.
        """
        ...


class MtpDrafter:
    """Chains of drafts from the single MTP head, fed with its own output.

    Row p of the head pairs the target's hidden state at p with token p + 1. Rows written by a
    chain lie behind ``drafter_cached`` and are overwritten by the next ``catch_up``.
    """

    def __init__(self, backend: Backend, slots: SlotTable) -> None:
        self._backend = backend
        self._slots = slots
        self._pool = StepPool()

    def catch_up(self, rows: TapRows, slots: Iterable[int], *, leave: int = 0) -> MtpOutput:
        """Run the head over the rows that the target has and it has not.

        ``rows`` of the target's last passes. The output's one row a slot is its newest one, whose
        draft is the first of the next step. Slots that are not named idle.
        """
        table, span = self._slots, rows.span
        arrays = self._pool.get(span.width, rows.num_rows)
        counts = [0] * span.width
        for slot in slots:
            start, end = table.drafter_cached[slot], table.cached[slot] - leave
            if start >= end:
                continue
            assert end - start <= rows.num_rows, "the target ran twice without a catch-up"
            place = slot - span.first
            counts[place] = end - start
            arrays.input_ids[place, : end - start] = table.tokens[slot][start + 1 : end + 1]
        arrays.ask_last_rows(counts)
        step = arrays.fill(
            past_len=span.part(table.drafter_cached),
            row_count=counts,
            attend_all=span.part(table.attend_all),
        )
        output = self._backend.run_mtp(span.states, step, arrays.input_ids, rows.hidden)
        for slot, count in zip(span.slots, counts, strict=True):
            table.drafter_cached[slot] += count
        return output

    def propose(
        self,
        rows: TapRows,
        depths: Mapping[int, int],
        choosers: Mapping[int, Chooser] | None = None,
    ) -> dict[int, list[int]]:
        """The first ``depths[slot]`` drafts of each slot."""
        span = rows.span
        output = self.catch_up(rows, depths)
        chains = _Chains(depths, span.first)
        past = span.part(self._slots.drafter_cached)
        for link in range(1, max(depths.values())):
            arrays = self._pool.get(span.width, 1)
            arrays.ask_last_rows([1] * span.width)
            step = arrays.fill(
                past_len=[cached + link - 1 for cached in past],
                row_count=[int(depths.get(slot, 0) > link) for slot in span.slots],
                attend_all=[0] * span.width,
            )
            fed = self._chosen(output, chains, choosers) if choosers else output.draft_ids
            following = self._backend.run_mtp(span.states, step, fed, output.hidden)
            # Read only now: the next link runs meanwhile where the backend works ahead.
            if not choosers:
                chains.lengthen(self._backend.to_host(output.draft_ids))
            output = following
        if choosers:
            self._chosen(output, chains, choosers)
        else:
            chains.lengthen(self._backend.to_host(output.draft_ids))
        return chains.by_slot

    def _chosen(
        self, output: MtpOutput, chains: _Chains, choosers: Mapping[int, Chooser]
    ) -> IntArray:
        """The drafts of one link ``[B, 1]``, added to the chains that want one more."""
        ids = np.array(self._backend.to_host(output.draft_ids))
        for slot, chooser in choosers.items():
            if chains.wants(slot):
                place = slot - chains.first
                ids[place, 0] = chooser(output.top_values[place, 0], output.top_ids[place, 0])
        chains.lengthen(ids)
        return ids


class _Chains:
    """Drafts of each slot, link by link."""

    def __init__(self, depths: Mapping[int, int], first: int) -> None:
        self._depths = depths
        self.first = first
        self.by_slot: dict[int, list[int]] = {slot: [] for slot in depths}

    def wants(self, slot: int) -> bool:
        """Whether the slot's chain is to be longer."""
        return len(self.by_slot[slot]) < self._depths[slot]

    def lengthen(self, draft_ids: IntArray) -> None:
        """Add the newest draft to the chain of each slot that wants one more."""
        ids = draft_ids.tolist()  # [B, 1]
        for slot, chain in self.by_slot.items():
            if self.wants(slot):
                chain += ids[slot - self.first]
