"""Prefill: the prompts of several slots in chunks, both caches together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from selfdraft.runtime.backend import BackboneOutput, Backend, States
from selfdraft.runtime.draft import Drafter
from selfdraft.runtime.slot_cache import PrefillAttention
from selfdraft.runtime.slots import SlotTable, StepPool

SPARSE_CHUNK_ROWS = 64
"""Default rows of a sparse chunk: the blocks of all its rows are read together, and few neighbours
choose nearly the same ones."""

OnProgress = Callable[[int, int], None]
"""Called with (tokens done, tokens in all)."""


class LastChunk(NamedTuple):
    """Output of the last chunk; its logit row is each prompt's last token."""

    output: BackboneOutput
    num_rows: int


class Prefill:
    """Computes the prompts of slots, ``chunk_rows`` tokens of each at a time.

    Shorter prompts start later, so that all end in the same chunk: its rows are then what a decode
    step leaves behind, and drafting goes on from there without a path of its own.

    ``attention`` sparse: each row sees the blocks that the op's selector gives it, as a decode step
    would; what is computed does not depend on ``chunk_rows`` either way.
    """

    def __init__(
        self,
        backend: Backend,
        states: States,
        slots: SlotTable,
        drafter: Drafter | None,
        *,
        chunk_rows: int,
        attention: PrefillAttention = "dense",
    ) -> None:
        self._backend = backend
        self._states = states
        self._slots = slots
        self._drafter = drafter
        self._chunk_rows = chunk_rows
        self._attend_all = int(attention == "dense")
        self._arrays = StepPool(slots.batch)

    def run(self, starting: Sequence[int], on_progress: OnProgress | None = None) -> LastChunk:
        """Fill the caches of the slots ``starting`` up to their tokens.

        The head sees every chunk but the last, whose last row waits for the token to be drawn.
        """
        left = np.zeros(self._slots.batch, dtype=np.int64)
        for slot in starting:
            left[slot] = len(self._slots.tokens[slot]) - self._slots.cached[slot]
        total = int(left.sum())
        while True:
            chunks = -(-left // self._chunk_rows)
            counts = np.where(chunks == chunks.max(), np.minimum(left, self._chunk_rows), 0)
            chunk = self._run_chunk(counts)
            left -= counts
            if on_progress:
                on_progress(total - int(left.sum()), total)
            if not left.any():
                return chunk
            if self._drafter:
                self._drafter.catch_up(chunk.output.hidden, chunk.num_rows)

    def _run_chunk(self, counts: np.ndarray[tuple[int], np.dtype[np.int64]]) -> LastChunk:
        slots = self._slots
        num_rows = int(counts.max())
        arrays = self._arrays.get(num_rows)
        step = arrays.step
        np.copyto(step.past_len, slots.cached)
        np.copyto(step.row_count, counts)
        np.multiply(counts > 0, self._attend_all, out=step.attend_all)
        np.copyto(step.row_index[:, 0], np.maximum(counts - 1, 0))
        for slot in np.flatnonzero(counts):
            start, count = int(slots.cached[slot]), int(counts[slot])
            arrays.input_ids[slot, :count] = slots.tokens[slot][start : start + count]
        output = self._backend.run_backbone(self._states, step, arrays.input_ids)
        slots.cached += counts
        np.copyto(slots.prompt_rows, slots.cached, where=counts > 0)
        slots.attend_all[counts > 0] = self._attend_all
        return LastChunk(output, num_rows)
