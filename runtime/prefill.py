"""Prefill: the prompts of several slots in chunks, both caches together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from selfdraft.runtime.backend import BackboneOutput, Backend
from selfdraft.runtime.draft import Drafter
from selfdraft.runtime.slot_cache import PrefillAttention
from selfdraft.runtime.slot_range import SlotRange, SlotRanges, TapRows
from selfdraft.runtime.slots import SlotTable, StepPool

SPARSE_CHUNK_ROWS = 64
"""Default rows of a sparse chunk: the blocks of all its rows are read together, and few neighbours
choose nearly the same ones."""

LEAST_ROWS = 2
"""Rows of a pass at least, padded: some int4 kernels give one row alone other bits than several."""

WEIGHT_BYTES = 256 * 2**20
"""Attention weights of one chunk at most, one copy; ONNX Runtime held four to five while it ran.

Enough for 256 rows of 32 heads over 8K tokens; further on chunks get shorter."""

OnProgress = Callable[[int, int], None]
"""Called with (tokens done, tokens in all)."""


def chunk_rows_at(end: int, *, most: int, batch: int, num_heads: int) -> int:
    """Rows of a chunk of ``batch`` slots whose longest may end at ``end`` tokens.

    At most ``most``, and so few that fp32 weights ``[batch, heads, rows, end]`` fit
    ``WEIGHT_BYTES``; whole multiples of 16 where that leaves so many.
    """
    fitting = WEIGHT_BYTES // (4 * batch * num_heads * end)
    return max(min(most, fitting if fitting < 16 else fitting // 16 * 16), 1)


class Chunk(NamedTuple):
    """Output of one chunk; its logit row is each prompt's newest token."""

    output: BackboneOutput
    num_rows: int
    span: SlotRange
    last: bool = True
    """The prompts are computed."""

    @property
    def taps(self) -> TapRows:
        """Hidden states of its rows."""
        return TapRows(self.output.hidden, self.num_rows, self.span)


class Prefill:
    """Computes the prompts of slots, ``chunk_rows`` tokens of each at a time, at length fewer.

    ``attention`` sparse: each row sees the blocks that the op's selector gives it, as a decode step
    would; what is computed does not depend on ``chunk_rows`` either way. ``alike``: decode steps
    compute what a prefill computes.
    """

    def __init__(
        self,
        backend: Backend,
        slots: SlotTable,
        ranges: SlotRanges,
        drafter: Drafter | None,
        *,
        chunk_rows: int,
        attention: PrefillAttention = "dense",
        alike: bool = True,
    ) -> None:
        self._backend = backend
        self._slots = slots
        self._ranges = ranges
        self._drafter = drafter
        self.chunk_rows = chunk_rows
        """Rows of a chunk at most."""
        self._attend_all = int(attention == "dense")
        self._alike = alike
        self._arrays = StepPool()

    def run(self, prompts: Mapping[int, int], on_progress: OnProgress | None = None) -> Chunk:
        """Fill the caches of slots up to their tokens; ``prompts``: how many are a prompt's.

        Shorter prompts start later, so that all end in the same chunk: its rows are then what a decode
        step leaves behind, and drafting goes on from there without a path of its own.

        Tokens behind the prompt are a reply that goes on: their rows are computed as decode steps
        compute them. The head sees every chunk but the last, whose last row waits for the token to
        be drawn.
        """
        span = self._ranges.covering(prompts)
        plans = {
            slot: list(self._parts(slot, length, self.chunk_rows, span))
            for slot, length in prompts.items()
        }
        num_chunks = max(len(plan) for plan in plans.values())
        total, done = sum(sum(part.num_rows for part in plan) for plan in plans.values()), 0
        for index in range(num_chunks):
            running = {
                slot: plan[index - num_chunks + len(plan)]
                for slot, plan in plans.items()
                if index >= num_chunks - len(plan)
            }
            chunk = self._run_chunk(running, span)
            done += sum(part.num_rows for part in running.values())
            if on_progress:
                on_progress(done, total)
            if index < num_chunks - 1 and self._drafter:
                self._drafter.catch_up(chunk.taps, running)
        return chunk

    def advance(self, slot: int, num_prompt: int, *, most: int) -> Chunk:
        """The next chunk of one slot, ``most`` rows at most; other slots may decode in between.

        The head sees it, unless it is the last one. ``num_prompt``: tokens of the prompt.
        """
        span = self._ranges.covering([slot])
        part = next(self._parts(slot, num_prompt, min(most, self.chunk_rows), span))
        chunk = self._run_chunk({slot: part}, span)
        if self._slots.cached[slot] == len(self._slots.tokens[slot]):
            return chunk
        if self._drafter:
            self._drafter.catch_up(chunk.taps, [slot])
        return chunk._replace(last=False)

    def _parts(self, slot: int, num_prompt: int, most: int, span: SlotRange) -> Iterator[_Part]:
        """Chunks that are left to compute; the end of a prompt is the end of a chunk.

        Where prompts and replies attend alike there is nothing to keep apart.
        """
        start, end = self._slots.cached[slot], len(self._slots.tokens[slot])
        border = end if self._alike else min(max(num_prompt, start), end)
        for rows in self._sizes(slot, start, border, most, span):
            yield _Part(rows, self._attend_all, True)
        for rows in self._sizes(slot, border, end, min(most, SPARSE_CHUNK_ROWS), span):
            yield _Part(rows, 0, False)

    def _sizes(self, slot: int, start: int, end: int, most: int, span: SlotRange) -> Iterator[int]:
        """Rows of the chunks from ``start`` to ``end``; other slots may be longer beside them."""
        tokens = self._slots.tokens
        beside = max((len(tokens[other]) for other in span.slots if other != slot), default=0)
        while start < end:
            rows = chunk_rows_at(
                max(min(start + most, end), beside),
                most=min(most, end - start),
                batch=span.width,
                num_heads=self._backend.manifest.model.num_heads,
            )
            yield rows
            start += rows

    def _run_chunk(self, running: Mapping[int, _Part], span: SlotRange) -> Chunk:
        slots = self._slots
        counts = [running[slot].num_rows if slot in running else 0 for slot in span.slots]
        num_rows = max(*counts, LEAST_ROWS)
        arrays = self._arrays.get(span.width, num_rows)
        for slot, part in running.items():
            start = slots.cached[slot]
            arrays.input_ids[slot - span.first, : part.num_rows] = slots.tokens[slot][
                start : start + part.num_rows
            ]
        arrays.ask_last_rows(counts)
        attend_all = [running[slot].attend_all if slot in running else 0 for slot in span.slots]
        step = arrays.fill(
            past_len=span.part(slots.cached), row_count=counts, attend_all=attend_all
        )
        output = self._backend.run_backbone(span.states, step, arrays.input_ids)
        for slot, part in running.items():
            slots.note_pass(slot, part.num_rows)
            slots.cached[slot] += part.num_rows
            slots.attend_all[slot] = part.attend_all
            if part.prompt:
                slots.prompt_rows[slot] = slots.cached[slot]
        return Chunk(output, num_rows, span)


class _Part(NamedTuple):
    """Rows of one slot in one chunk."""

    num_rows: int
    attend_all: int
    prompt: bool
