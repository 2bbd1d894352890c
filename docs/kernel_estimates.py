"""Predicted bytes, arithmetic and time of the kernels on an Orin; writes the tables of docs/kernels.md.

Usage: ``python docs/kernel_estimates.py`` (``--check`` only compares). Nothing here was measured on a
board: figures follow from shapes, the module's data sheet, and the assumptions below.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from selfdraft.jetson.modules import Module, module_named
from selfdraft.recurrent import DELTA_BLOCK
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.gated_delta_rule import launches as delta
from selfdraft.trt_plugins.gated_delta_rule.contract import GatedDeltaRule
from selfdraft.trt_plugins.int4_matmul.contract import (
    CHUNK_INPUTS,
    STRIP_OUTPUTS,
    Int4MatMul,
)
from selfdraft.trt_plugins.int4_matmul.launch import FEW_ROWS, MANY_ROWS, launch_for, memory_bytes

PAGE = Path(__file__).with_name("kernels.md")
MODULE = "agx-orin-64"
BANDWIDTH_SHARE = 0.75
"""Of the peak: a read test reached 152 of 204.8 GB/s on this module (facts, not ours)."""
MMA_SHARE = 0.5
"""Of the dense fp16 peak with fp32 sums; whether Orin halves the rate for fp32 sums is not known."""
ISSUE_SHARE = 0.6
"""Of one instruction a clock in each of an SM's four schedulers."""
LAUNCH_US = 2.5
"""Between two kernels of a captured graph."""
L2_LATENCY_US = 0.25
"""One load that the second-level cache answers and that nothing hides."""

TILE_ROWS = 16
BLOCK = 64
CONTEXTS = (4096, 32768, 131072)
ROWS = (1, 2, 5, 9, 16, 32, 512)
CHUNK = 512
CTA_TILES = 4
"""Tiles of a thread block of ``prefill``, which read keys and values together."""
NEW_SHARE = 0.1
"""Part of its blocks that a tile has for itself, beside those of the tile before it: assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Sizes of a model that its kernels see."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each matrix of a layer, and of the LM head."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q": (self.hidden, queries),
            "k": (self.hidden, keys),
            "v": (self.hidden, keys),
            "o": (queries, self.hidden),
            "gate": (self.hidden, self.ffn),
            "up": (self.hidden, self.ffn),
            "down": (self.ffn, self.hidden),
            "LM head": (self.hidden, self.vocab),
        }


QWEN3_8B = Geometry(
    name="Qwen3-8B",
    layers=36,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    ffn=12288,
    vocab=151936,
)


QWEN3_5_4B = GatedDeltaRule(
    num_key_heads=16,
    num_value_heads=32,
    key_dim=128,
    value_dim=128,
    taps=4,
    row_dtype="fp16",
)
"""A gated delta net layer of Qwen3.5-4B, which has 24 of them."""
DELTA_INSTRUCTIONS = 1_500
"""Warp instructions of a warp of ``delta_scan`` for a block of eight rows: 512 FMAs on the state and 128
loads for probes, 256 and 64 to move it, 300 for products within the block, the rest addresses and loop;
counted in the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one launch does."""

    kernel: str
    memory_bytes: int
    """Bytes that must cross the memory bus."""
    cache_bytes: int = 0
    """Bytes handed from kernel to kernel, which the second-level cache should hold."""
    mma_flops: int = 0
    """Multiplies and adds of the tensor cores, rows of padding included."""
    instructions: int = 0
    """Warp instructions, counted in the source."""
    waits: int = 0
    """Loads of one thread that follow one another."""


def predicted_us(work: Work, module: Module) -> float:
    """Time of one launch: the slowest of memory, tensor cores and issue; plus what nothing hides."""
    memory = work.memory_bytes / (BANDWIDTH_SHARE * module.bandwidth_gb_s() * 1e3)
    mma = work.mma_flops / (MMA_SHARE * module.fp16_tflops() * 1e6)
    issue = work.instructions / (ISSUE_SHARE * 4 * module.num_sms * module.max_gpu_mhz)
    return max(memory, mma, issue) + work.waits * L2_LATENCY_US + LAUNCH_US


def matmul_work(op: Int4MatMul, *, rows: int) -> Work:
    """One ``Int4MatMul``."""
    launch = launch_for(op, rows=rows)
    block_rows = next((few for few in FEW_ROWS if rows <= few), MANY_ROWS)
    padded = launch.grid[0] * block_rows
    chunks = launch.grid[0] * op.strips * op.chunks
    return Work(
        kernel=launch.kernel,
        memory_bytes=memory_bytes(op, rows=rows),
        cache_bytes=(op.strips - 1) * rows * op.in_features * 2,
        mma_flops=2 * padded * op.strips * STRIP_OUTPUTS * op.padded_inputs,
        instructions=chunks * _chunk_instructions(op, block_rows=block_rows),
    )


def _chunk_instructions(op: Int4MatMul, *, block_rows: int) -> int:
    """Warp instructions for one chunk of one strip in all warps that work on it.

    A word of codes: nine to unpack, one MMA for each tile of eight rows. A tile: scales fetched and
    converted, four FMAs for each tile of rows and segment. The rest: loads, addresses, the loop.
    """
    row_tiles = block_rows // 8
    segments = max(CHUNK_INPUTS // op.group_size, 1)
    shared_by = 2 if block_rows == MANY_ROWS else 1  # two warps unpack the same codes
    unpack = 16 * 9 * shared_by
    multiply = 16 * row_tiles
    scale = 4 * segments * (4 * shared_by + 4 * row_tiles)
    return unpack + multiply + scale + 40 + 4 * row_tiles


def attention_op(geometry: Geometry, *, kv_dtype: str, budget: int = 4096) -> CachedAttention:
    """The sparse attention of one layer: ``mean_std``, one sink block, two local ones."""
    return CachedAttention(
        num_heads=geometry.heads,
        num_kv_heads=geometry.kv_heads,
        head_dim=geometry.head_dim,
        scale=geometry.head_dim**-0.5,
        selector="mean_std",
        kv_dtype=kv_dtype,  # type: ignore[arg-type]
        budget_tokens=budget,
    )


def attention_work(op: CachedAttention, *, context: int, rows: int, splits: int) -> list[Work]:
    """The kernels of one layer's decode step at ``context`` tokens, one slot; rows share blocks."""
    tiles = -(-rows // (TILE_ROWS // op.group))
    heads, d = op.num_kv_heads, op.head_dim
    element = 1 if op.kv_dtype == "int8" else 2
    token_bytes = 2 * d * element + (4 if op.kv_dtype == "int8" else 0)
    blocks = -(-context // BLOCK)
    read = min(blocks, -(-op.budget_tokens // BLOCK))
    scored = blocks - op.sinks - op.local_blocks if read < blocks else 0
    summaries = scored + op.sinks if scored else 0  # those of sinks are read beside the others
    tile_logits = heads * tiles * TILE_ROWS * 4
    partial = heads * tiles * splits * TILE_ROWS * (d + 2) * 4
    queries = rows * op.num_heads * d * 2
    keys_by_thread = -(-scored // 256)
    # Batches of select.cu: 8 logits or 4 heads or 4 keys at a time.
    normalise = 2 * -(-scored // 256) * -(-op.group // 8)
    per_row = normalise + keys_by_thread * (-(-op.group // 4) + 1) + 4 * -(-keys_by_thread // 4)
    return [
        Work(
            kernel="append",
            memory_bytes=heads * (rows * (4 * d + token_bytes) + BLOCK * d * element),
        ),
        Work(
            kernel="score",
            memory_bytes=heads * summaries * op.summary_vectors * d * 2 + queries * (scored > 0),
            cache_bytes=tile_logits * scored,
            mma_flops=2 * heads * tiles * TILE_ROWS * scored * op.summary_vectors * d,
        ),
        Work(
            kernel="select",
            memory_bytes=0,
            cache_bytes=tile_logits * scored * 3,
            waits=rows * per_row + keys_by_thread,
        ),
        Work(
            kernel="attend",
            memory_bytes=heads * read * BLOCK * token_bytes + queries,
            cache_bytes=partial,
            mma_flops=4 * heads * tiles * TILE_ROWS * read * BLOCK * d,
        ),
        Work(kernel="combine", memory_bytes=queries, cache_bytes=partial, waits=3 * splits),
    ]


def prefill_work(op: CachedAttention, *, context: int, rows: int, dense: bool) -> Work:
    """``prefill`` for the last ``rows`` rows of ``context`` tokens, one slot.

    ``cache_bytes``: what all thread blocks load; ``memory_bytes``: each block of keys and values once for
    a kv head, whose thread blocks run side by side.
    """
    tile_rows = TILE_ROWS // op.group
    tiles = -(-rows // tile_rows)
    ctas = -(-tiles // CTA_TILES)
    element = 1 if op.kv_dtype == "int8" else 2
    token_bytes = 2 * op.head_dim * element + (4 if op.kv_dtype == "int8" else 0)
    if dense or context <= op.budget_tokens:
        ends = [min((i + 1) * CTA_TILES * tile_rows, rows) for i in range(ctas)]
        loaded = sum(context - rows + end for end in ends)
        seen, once = tiles * context, context
    else:
        read = min(-(-context // BLOCK), -(-op.budget_tokens // BLOCK)) * BLOCK
        seen = tiles * read
        loaded = round(ctas * read * (1 + (CTA_TILES - 1) * NEW_SHARE))
        once = min(context, round(read * (1 + (tiles - 1) * NEW_SHARE)))
    row_bytes = 2 * rows * op.num_heads * op.head_dim * 2  # q and y
    return Work(
        kernel="prefill",
        memory_bytes=op.num_kv_heads * once * token_bytes + row_bytes,
        cache_bytes=op.num_kv_heads * loaded * token_bytes,
        mma_flops=4 * op.num_kv_heads * TILE_ROWS * seen * op.head_dim,
    )


def delta_steps(*, rows: int) -> list[delta.SlotStep]:
    """A decode step of one slot at each of the eight places in a block; the last one kept all its rows."""
    begin = 800 * DELTA_BLOCK
    return [
        delta.SlotStep(
            past_len=begin + place, rows=rows, replay=place + DELTA_BLOCK * (place < rows)
        )
        for place in range(DELTA_BLOCK)
    ]


def delta_chunk(*, rows: int) -> list[delta.SlotStep]:
    """A chunk of a long prompt."""
    return [delta.SlotStep(past_len=20 * rows, rows=rows, replay=2 * DELTA_BLOCK)]


def delta_work(op: GatedDeltaRule, steps: Sequence[delta.SlotStep]) -> list[Work]:
    """The three kernels of one layer, the mean of ``steps`` (each of one slot)."""
    rows = max(step.rows for step in steps)
    asked = [delta.bytes_asked_for(op, [step], rows=rows) for step in steps]
    mixed = sum(found["partial_written"] for found in asked) // len(steps)
    whole = sum(delta.memory_bytes(op, [step]) for step in steps) // len(steps)
    logs = sum(found["log_written"] for found in asked) // len(steps)
    given = rows * op.channels * 2 + op.channels * op.taps * 4
    blocks = sum(-(-step.total // DELTA_BLOCK) for step in steps) / len(steps)
    warps = op.num_value_heads * (op.value_dim // delta.COLUMNS) * 4
    return [
        Work(kernel="delta_mix", memory_bytes=given, cache_bytes=mixed),
        Work(
            kernel="delta_scan",
            memory_bytes=whole - given - logs,
            cache_bytes=sum(found["partial_read"] for found in asked) // len(steps),
            instructions=round(blocks * warps * DELTA_INSTRUCTIONS),
        ),
        Work(kernel="delta_log", memory_bytes=logs),
    ]


def splits_for(op: CachedAttention, module: Module) -> int:
    """Two thread blocks for each SM."""
    return max(2 * module.num_sms // op.num_kv_heads, 1)


# ---- the page ------------------------------------------------------------------------------------


def attention_table(geometry: Geometry, module: Module) -> list[str]:
    """Kernels of one layer and one row at each context, fp16 caches, ``attend`` also int8."""
    lines = [
        "| kernel | tokens | memory bytes | cache bytes | MMA flops | predicted µs |",
        "|---|---|---|---|---|---|",
    ]
    for context in CONTEXTS:
        for kv_dtype in ("fp16", "int8"):
            op = attention_op(geometry, kv_dtype=kv_dtype)
            works = attention_work(op, context=context, rows=1, splits=splits_for(op, module))
            for work in works:
                if kv_dtype == "fp16" or work.kernel == "attend":
                    name = f"`{work.kernel}`" + (f" {kv_dtype}" if work.kernel == "attend" else "")
                    lines.append(_row(name, f"{context:,}", work, module))
    return lines


def prefill_table(geometry: Geometry, module: Module) -> list[str]:
    """One layer's ``prefill`` of the last chunk of a prompt, fp16 caches, dense and sparse."""
    lines = [
        "| lists | tokens | memory bytes | cache bytes | MMA flops | predicted µs |",
        "|---|---|---|---|---|---|",
    ]
    op = attention_op(geometry, kv_dtype="fp16")
    for context in CONTEXTS:
        for name in ("dense", "sparse"):
            work = prefill_work(op, context=context, rows=CHUNK, dense=name == "dense")
            lines.append(_row(name, f"{context:,}", work, module))
    return lines


def delta_table(op: GatedDeltaRule, module: Module) -> list[str]:
    """Kernels of one gated delta net layer: decode steps and a chunk of a prompt, one slot."""
    lines = [
        "| kernel | rows | memory bytes | cache bytes | warp instructions | predicted µs |",
        "|---|---|---|---|---|---|",
    ]
    for rows in (1, 2, 5, CHUNK):
        steps = delta_chunk(rows=rows) if rows == CHUNK else delta_steps(rows=rows)
        for work in delta_work(op, steps):
            cells = [f"`{work.kernel}`", str(rows), _bytes(work.memory_bytes)]
            cells += [_bytes(work.cache_bytes), f"{work.instructions / 1e6:.2f} M"]
            lines.append("| " + " | ".join([*cells, _number(predicted_us(work, module))]) + " |")
    return lines


def matmul_table(geometry: Geometry, module: Module, *, group: int = 128) -> list[str]:
    """Each matrix of a layer by number of rows: predicted microseconds."""
    head = " | ".join(f"{rows} rows" if rows > 1 else "1 row" for rows in ROWS)
    lines = [
        f"| matrix | inputs × outputs | bytes, 1 row | {head} |",
        "|---|---|---|" + "---|" * len(ROWS),
    ]
    for name, (inputs, outputs) in geometry.matrices().items():
        op = Int4MatMul(in_features=inputs, out_features=outputs, group_size=group)
        times = [predicted_us(matmul_work(op, rows=rows), module) for rows in ROWS]
        shown = " | ".join(_number(time) for time in times)
        size = _bytes(memory_bytes(op, rows=1))
        lines.append(f"| {name} | {inputs:,} × {outputs:,} | {size} | {shown} |")
    return lines


def step_table(geometry: Geometry, module: Module) -> list[str]:
    """All layers of one decode step: int4 matmuls, and attention by context and KV dtype."""
    lines = [
        "| rows | int4 matmuls ms | attention ms, fp16: 4K | 32K | 128K | int8: 4K | 32K | 128K |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for rows in (1, 2, 5):
        cells = [f"{step_matmul_us(geometry, module, rows=rows) / 1e3:.1f}"]
        for kv_dtype in ("fp16", "int8"):
            for context in CONTEXTS:
                op = attention_op(geometry, kv_dtype=kv_dtype)
                splits = splits_for(op, module)
                works = attention_work(op, context=context, rows=rows, splits=splits)
                time = geometry.layers * sum(predicted_us(work, module) for work in works)
                cells.append(f"{time / 1e3:.1f}")
        lines.append(f"| {rows} | " + " | ".join(cells) + " |")
    return lines


def step_matmul_us(geometry: Geometry, module: Module, *, rows: int, group: int = 128) -> float:
    """All int4 matmuls of one step, LM head included."""
    total = 0.0
    for name, (inputs, outputs) in geometry.matrices().items():
        op = Int4MatMul(in_features=inputs, out_features=outputs, group_size=group)
        times = 1 if name == "LM head" else geometry.layers
        total += times * predicted_us(matmul_work(op, rows=rows), module)
    return total


def _row(name: str, context: str, work: Work, module: Module) -> str:
    cells = [name, context, _bytes(work.memory_bytes), _bytes(work.cache_bytes)]
    cells += [_number(work.mma_flops / 1e6) + " M", _number(predicted_us(work, module))]
    return "| " + " | ".join(cells) + " |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _bytes(count: int) -> str:
    return f"{count / 1e6:,.2f} MB"


def page(text: str) -> str:
    """The page with its tables written anew."""
    module = module_named(MODULE)
    for name, lines in (
        ("attention", attention_table(QWEN3_8B, module)),
        ("prefill", prefill_table(QWEN3_8B, module)),
        ("delta", delta_table(QWEN3_5_4B, module)),
        ("matmul", matmul_table(QWEN3_8B, module)),
        ("step", step_table(QWEN3_8B, module)),
    ):
        text = _replaced(text, name, lines)
    return text


def _replaced(text: str, name: str, lines: Iterable[str]) -> str:
    begin, end = f"<!-- {name}: written by kernel_estimates.py -->", f"<!-- end of {name} -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return "\n".join([before + begin, *lines, end]) + after


def main(arguments: Sequence[str]) -> int:
    """Write the tables, or with ``--check`` tell whether they are up to date."""
    text = PAGE.read_text(encoding="utf-8")
    if list(arguments) == ["--check"]:
        return int(text != page(text))
    PAGE.write_text(page(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
