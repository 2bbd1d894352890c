"""Prefill: the prompts of several slots in chunks, both caches together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

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
        left = [0] * self._slots.batch
        for slot in starting:
            left[slot] = len(self._slots.tokens[slot]) - self._slots.cached[slot]
        total = sum(left)
        while True:
            chunks = [-(-rows // self._chunk_rows) for rows in left]
            counts = [
                min(rows, self._chunk_rows) if own == max(chunks) else 0
                for rows, own in zip(left, chunks, strict=True)
            ]
            chunk = self._run_chunk(counts)
            left = [rows - count for rows, count in zip(left, counts, strict=True)]
            if on_progress:
                on_progress(total - sum(left), total)
            if not any(left):
                return chunk
            if self._drafter:
                self._drafter.catch_up(chunk.output.hidden, chunk.num_rows)

    def _run_chunk(self, counts: Sequence[int]) -> LastChunk:
        slots, num_rows = self._slots, max(counts)
        running = [slot for slot, count in enumerate(counts) if count]
        arrays = self._arrays.get(num_rows)
        for slot in running:
            start, count = slots.cached[slot], counts[slot]
            arrays.input_ids[slot, :count] = slots.tokens[slot][start : start + count]
        arrays.ask_last_rows(counts)
        attend_all = [self._attend_all if count else 0 for count in counts]
        step = arrays.fill(past_len=slots.cached, row_count=counts, attend_all=attend_all)
        output = self._backend.run_backbone(self._states, step, arrays.input_ids)
        for slot in running:
            slots.cached[slot] += counts[slot]
            slots.prompt_rows[slot] = slots.cached[slot]
            slots.attend_all[slot] = self._attend_all
        return LastChunk(output, num_rows)
