"""How a step of ``CachedAttention`` is launched: kernels, grids, shared memory, workspace.

Everything follows from attributes, the number of rows and the capacity, never from lengths: one
plan, and one CUDA graph, serves every step of its shape. Kernels: csrc/, parameters: csrc/step.cuh.
More than 48 KiB of shared memory must be allowed once for each kernel
(``CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES``).
"""

from __future__ import annotations

import math
from ctypes import c_float, c_int32
from dataclasses import dataclass

from selfdraft.errors import ConfigError
from selfdraft.manifest import MAX_STEP_ROWS
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention, Selector
from selfdraft.trt_plugins.host.launch import POINTER, KernelLaunch, params_kind

TILE_ROWS = 16
"""Rows of an MMA tile: query rows times heads of a group."""
MAX_BLOCKS = 1 << 16
"""A list entry holds the block id in 16 bits: caches of up to 4,194,304 tokens."""
HEAD_DIMS = (64, 128, 256)
BUSY_BLOCKS = 32
"""Thread blocks that keep an Orin's 16 multiprocessors at work: what a slot's splits and kv heads give."""
WORKSPACE_ALIGNMENT = 256
MAX_SHARED_BYTES = 163 * 1024
"""Shared memory that a thread block may have on sm_87 (``build.occupancy``)."""
SELECTOR_CODES: dict[Selector, int] = {
    "all": 0,
    "window": 1,
    "mean_std": 2,
    "min_max": 3,
    "infllm_v2": 4,
}

POINTERS = (
    "q",
    "k",
    "v",
    "k_cache",
    "v_cache",
    "k_scale",
    "v_scale",
    "summary",
    "past_len",
    "row_count",
    "attend_all",
    "y",
    "blocks_read",
    "logits",
    "keys",
    "list",
    "list_count",
    "partial",
    "partial_ml",
)
INTEGERS = (
    "batch",
    "rows",
    "kv_heads",
    "group",
    "blocks",
    "tiles",
    "splits",
    "selector",
    "sinks",
    "local_blocks",
    "budget_tokens",
    "budget_parts",
    "sliding_window",
)
StepParams = params_kind(
    "Step",
    **dict.fromkeys(POINTERS, POINTER),
    **dict.fromkeys(INTEGERS, c_int32),
    scale=c_float,
    spread=c_float,
)
"""``struct Step`` of csrc/step.cuh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """A step of ``rows`` rows in each of ``batch`` slots, on caches of ``blocks`` blocks.

    ``splits``: CTAs that share the blocks of a tile. ``prefill``: the kernel for many rows attends,
    without splits; a row's output then is the same in every chunk, but not bit for bit that of a
    decode step. Raises ``ConfigError`` for what the kernels do not implement.
    """

    op: CachedAttention
    batch: int
    rows: int
    blocks: int
    splits: int = 1
    prefill: bool = False

    def __post_init__(self) -> None:
        op = self.op
        _require(op.group <= TILE_ROWS, f"group {op.group}", f"at most {TILE_ROWS} heads")
        _require(op.head_dim in HEAD_DIMS, f"head_dim {op.head_dim}", f"one of {HEAD_DIMS}")
        _require(op.kv_dtype in ("fp16", "int8"), f"kv_dtype {op.kv_dtype}", "fp16 or int8")
        _require(self.blocks < MAX_BLOCKS, f"{self.blocks} cache blocks", f"below {MAX_BLOCKS}")
        _require(self.splits >= 1, f"{self.splits} splits", "at least 1")
        _require(not self.prefill or self.splits == 1, f"{self.splits} splits", "1 in prefill")

    @property
    def tile_query_rows(self) -> int:
        """Query rows of a tile: whole rows only, so that a row's heads share list and scores."""
        return TILE_ROWS // self.op.group

    @property
    def tiles(self) -> int:
        """Tiles of a slot and kv head (T)."""
        return -(-self.rows // self.tile_query_rows)

    @property
    def integers(self) -> dict[str, int]:
        """The integer fields of ``StepParams``."""
        op = self.op
        return {
            "batch": self.batch,
            "rows": self.rows,
            "kv_heads": op.num_kv_heads,
            "group": op.group,
            "blocks": self.blocks,
            "tiles": self.tiles,
            "splits": self.splits,
            "selector": SELECTOR_CODES[op.selector],
            "sinks": op.sinks,
            "local_blocks": op.local_blocks,
            "budget_tokens": op.budget_tokens,
            "budget_parts": op.budget_parts,
            "sliding_window": op.sliding_window,
        }

    @property
    def workspace(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of each workspace array; undefined before a step, dead after it."""
        heads = (self.batch, self.op.num_kv_heads, self.tiles)
        columns = self.blocks * (5 if self.op.selector == "infllm_v2" else 1)
        split = (*heads, self.splits, TILE_ROWS)
        arrays: dict[str, tuple[tuple[int, ...], str]] = {
            "list": ((*heads, self.blocks), "uint32"),
            "list_count": (heads, "int32"),
        }
        if not self.prefill:
            arrays["partial"] = ((*split, self.op.head_dim), "float32")
            arrays["partial_ml"] = ((*split, 2), "float32")
        if self.op.summary_vectors:
            arrays["logits"] = ((*heads, TILE_ROWS, columns), "float32")
            arrays["keys"] = ((*heads, self.tile_query_rows, self.blocks), "uint32")
        return arrays

    def launches(self) -> tuple[KernelLaunch, ...]:
        """The step's kernels in their order."""
        scored = (_score(self),) if self.op.summary_vectors else ()
        last = (_prefill(self),) if self.prefill else (_attend(self), _combine(self))
        return (_append(self), *scored, _select(self), *last)


def planned_step(op: CachedAttention, *, batch: int, rows: int, blocks: int) -> StepShape:
    """The step as the TensorRT plugin launches it: decided by attributes and rows alone.

    Splits follow from the kv heads and not from the device, since a row's bits depend on them.
    """
    prefill = rows > MAX_STEP_ROWS
    splits = 1 if prefill else max(BUSY_BLOCKS // op.num_kv_heads, 1)
    return StepShape(op=op, batch=batch, rows=rows, blocks=blocks, splits=splits, prefill=prefill)


def check_kernels(op: CachedAttention, *, blocks: int) -> None:
    """Raise ``ConfigError`` where the kernels cannot serve a cache of ``blocks`` blocks on an Orin."""
    for rows in (1, MAX_STEP_ROWS + 1):
        for launch in planned_step(op, batch=1, rows=rows, blocks=blocks).launches():
            _require(
                launch.shared_bytes <= MAX_SHARED_BYTES,
                f"{blocks} cache blocks",
                f"what {launch.kernel} holds in {MAX_SHARED_BYTES} bytes of shared memory",
            )


def workspace_bytes(shape: StepShape) -> int:
    """Bytes of the workspace as the plugin lays it out: every array on a boundary of its own."""
    sizes = [4 * math.prod(dims) for dims, _ in shape.workspace.values()]  # all of 32 bits
    return sum(-(-size // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT for size in sizes)


def state_shapes(op: CachedAttention, *, batch: int, blocks: int) -> dict[str, tuple[int, ...]]:
    """Layouts of the states on Orin: KV ``[B, blocks, Hkv, 64, d]``, head-major summaries."""
    cache = (batch, blocks, op.num_kv_heads, op.block)
    shapes = {
        "k_cache": (*cache, op.head_dim),
        "v_cache": (*cache, op.head_dim),
        "k_scale": cache,
        "v_scale": cache,
        "summary": (batch, op.num_kv_heads, blocks, op.summary_vectors, op.head_dim),
    }
    return {name: shapes[name] for name in op.states}


def _require(holds: bool, found: str, wanted: str) -> None:
    if not holds:
        raise ConfigError(
            f"the CachedAttention kernels take {wanted}, found {found}",
            hint="choose a smaller context, or a target whose body is not these kernels",
        )


def _query_bytes(op: CachedAttention) -> int:
    return TILE_ROWS * (op.head_dim + 8) * 2


def _stage_bytes(op: CachedAttention, tokens: int) -> int:
    """Two stages of ``tokens`` keys and values, int8 with their scales."""
    token_bytes = op.head_dim + 2 if op.kv_dtype == "int8" else 2 * op.head_dim
    return 2 * 2 * tokens * token_bytes


def _count_bytes(shape: StepShape) -> int:
    """A bit for each block, and the sum."""
    return 4 + -(-shape.blocks // 32) * 4


def _append(shape: StepShape) -> KernelLaunch:
    op = shape.op
    reach = 1 if op.selector == "infllm_v2" else 0
    touched = 1 + -(-shape.rows // op.block) + reach
    return KernelLaunch(
        file="append",
        kernel=f"append_{op.kv_dtype}_d{op.head_dim}",
        grid=(touched, op.num_kv_heads, shape.batch),
        threads=128,
        shared_bytes=512,
    )


def _score(shape: StepShape) -> KernelLaunch:
    op = shape.op
    kind = "windows" if op.selector == "infllm_v2" else "blocks"
    return KernelLaunch(
        file="score",
        kernel=f"score_{kind}_d{op.head_dim}",
        grid=(-(-shape.blocks // 64), op.num_kv_heads * shape.tiles, shape.batch),
        threads=128,
        shared_bytes=_query_bytes(op),
    )


def _select(shape: StepShape) -> KernelLaunch:
    return KernelLaunch(
        file="select",
        kernel="select_blocks",
        grid=(shape.tiles, shape.op.num_kv_heads, shape.batch),
        threads=256,
        shared_bytes=4096,
    )


def _attend(shape: StepShape) -> KernelLaunch:
    op = shape.op
    return KernelLaunch(
        file="attend",
        kernel=f"attend_{op.kv_dtype}_d{op.head_dim}",
        grid=(shape.splits, op.num_kv_heads * shape.tiles, shape.batch),
        threads=128,
        shared_bytes=_attend_bytes(shape),
    )


def _attend_bytes(shape: StepShape) -> int:
    """Two stages of K and V, queries, weights, the warps' notes, and the queue of blocks."""
    op = shape.op
    tokens = 32 if op.head_dim == 256 and op.kv_dtype == "fp16" else 64
    weights = TILE_ROWS * (tokens + 8) * 2
    notes = 4 * TILE_ROWS * 4
    queue = -(-shape.blocks // shape.splits) * 4
    return _stage_bytes(op, tokens) + _query_bytes(op) + weights + notes + queue


def _combine(shape: StepShape) -> KernelLaunch:
    op = shape.op
    return KernelLaunch(
        file="combine",
        kernel=f"combine_d{op.head_dim}",
        grid=(shape.rows, op.num_kv_heads, shape.batch),
        threads=128,
        shared_bytes=_count_bytes(shape),
    )


def _prefill(shape: StepShape) -> KernelLaunch:
    op = shape.op
    tokens = 32 if op.head_dim == 256 else 64
    own = _stage_bytes(op, tokens) + 4 * _query_bytes(op)
    return KernelLaunch(
        file="prefill",
        kernel=f"prefill_{op.kv_dtype}_d{op.head_dim}",
        grid=(-(-shape.tiles // 4), op.num_kv_heads, shape.batch),
        threads=128,
        shared_bytes=max(own, _count_bytes(shape)),
    )
