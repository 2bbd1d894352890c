"""Hidden states that wait on the host until the MTP head takes them in."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from selfdraft.runtime.backend import FloatArray
from selfdraft.runtime.slot_range import SlotRange, TapRows
from selfdraft.runtime.slots import SlotTable

MOST_ROWS = 32
"""Rows of a slot that may wait; one pass of the head then takes them all."""


class KeptHidden:
    """Rows of the target that the head has not seen, in the order of their positions.

    Those of slot b belong to positions ``drafter_cached[b]`` and on. They are of decode steps; of a
    prompt only the last row may wait, alone, since it attends in another way.
    """

    def __init__(self, slots: SlotTable) -> None:
        self._slots = slots
        self._counts = [0] * slots.batch
        self._rows: FloatArray | None = None

    @property
    def count(self) -> int:
        """Rows of the slot that has the most."""
        return max(self._counts)

    def add(self, hidden: FloatArray, span: SlotRange, *, without: Collection[int] = ()) -> None:
        """Keep a step's committed rows: ``hidden [B, n, H]`` of ``span`` on the host, copied.

        ``without``: slots whose rows nobody will ask for.
        """
        slots, rows = self._slots, self._room(hidden)
        for slot in span.slots:
            kept = self._counts[slot]
            new = slots.cached[slot] - slots.drafter_cached[slot] - kept
            if slots.live[slot] and new > 0 and slot not in without:
                rows[slot, kept : kept + new] = hidden[slot - span.first, :new]
                self._counts[slot] = kept + new

    def add_row(self, slot: int, row: FloatArray) -> None:
        """Keep the one row ``[H]`` that the head has not seen of ``slot``."""
        self._room(row[None, None])[slot, 0] = row
        self._counts[slot] = 1

    def drop(self, slot: int) -> None:
        """Forget a slot's rows: its sequence is another one now."""
        self._counts[slot] = 0

    def take(self, span: SlotRange) -> TapRows:
        """All rows, padded to a power of two so that few shapes occur; none stays."""
        assert self._rows is not None, "nothing was kept"
        num_rows = 1 << (self.count - 1).bit_length()
        self.clear()
        return TapRows(self._rows[span.first : span.first + span.width, :num_rows], num_rows, span)

    def clear(self) -> None:
        """Forget every row: no sequence needs them any more."""
        self._counts = [0] * self._slots.batch

    def _room(self, hidden: FloatArray) -> FloatArray:
        _, num_rows, width = hidden.shape
        batch = self._slots.batch
        needed = 1 << (self.count + num_rows - 1).bit_length()
        if self._rows is None or self._rows.shape[1] < needed:
            grown = np.zeros((batch, max(needed, MOST_ROWS), width), dtype=hidden.dtype)
            if self._rows is not None:
                grown[:, : self._rows.shape[1]] = self._rows
            self._rows = grown
        return self._rows
