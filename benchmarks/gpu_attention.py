"""A step of CachedAttention on a GPU: time by kernel, bytes of keys, values and summaries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cuda_driver import Gpu, random_halves
from benchmarks.gpu_timing import Replays, copies_beyond_cache, step_times
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.cached_attention.launches import (
    POINTERS,
    StepParams,
    StepShape,
    state_shapes,
)

Cubins = dict[str, bytes]
"""Machine code by the name of the kernel file."""


def step_shape(gpu: Gpu, op: CachedAttention, *, context: int, rows: int) -> StepShape:
    """One slot whose cache holds ``context`` tokens after the step; two thread blocks for each SM."""
    splits = max(2 * gpu.num_sms // op.num_kv_heads, 1)
    blocks = -(-context // op.block) + 1
    return StepShape(op=op, batch=1, rows=rows, blocks=blocks, splits=splits)


def timing(
    gpu: Gpu, cubins: Cubins, shape: StepShape, *, context: int, replays: Replays
) -> dict[str, Any]:
    """Median time of a step and of each of its kernels, caches from memory each time."""
    op, rows = shape.op, shape.rows
    read = min(context, op.budget_tokens) if op.selector != "all" else context
    wanted = cache_bytes(op, tokens=read) + summary_bytes(op, context=context)
    copies = copies_beyond_cache(gpu, wanted)
    common = _common_arrays(gpu, shape, context=context)
    blocks = [_params(shape, common | _states(gpu, shape, seed=i)) for i in range(copies)]

    step, by_kernel = step_times(gpu, cubins, shape.launches(), blocks, replays=replays)
    gpu.free_all()
    return {
        "rows": rows,
        "context": context,
        "us": step,
        "us_by_kernel": by_kernel,
        "memory_bytes": wanted,
        "gb_s": round(wanted / step / 1e3, 2),
    }


def cache_bytes(op: CachedAttention, *, tokens: int) -> int:
    """Bytes of keys, values and scales of ``tokens`` tokens of all kv heads."""
    token = 2 * op.head_dim + 4 if op.kv_dtype == "int8" else 4 * op.head_dim
    return op.num_kv_heads * tokens * token


def summary_bytes(op: CachedAttention, *, context: int) -> int:
    """Bytes of the summaries that a step scores; none where the budget holds the context."""
    if not op.summary_vectors or context <= op.budget_tokens:
        return 0
    blocks = -(-context // op.block) - op.sinks - op.local_blocks
    return op.num_kv_heads * blocks * op.summary_vectors * op.head_dim * 2


def dense_framework_us(op: CachedAttention, *, context: int, replays: Replays) -> float | None:
    """One row of dense fp16 attention by torch on the same GPU; None where torch has no CUDA."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    shape = (1, op.num_kv_heads, context, op.head_dim)
    keys, values = (torch.randn(shape, dtype=torch.float16, device="cuda") for _ in range(2))
    query = torch.randn(1, op.num_heads, 1, op.head_dim, dtype=torch.float16, device="cuda")
    attend = torch.nn.functional.scaled_dot_product_attention
    times = []
    for _ in range(replays.warm_up + replays.timed):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        attend(query, keys, values, enable_gqa=True)
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last) * 1e3)
    return float(np.median(times[replays.warm_up :]))


def _common_arrays(gpu: Gpu, shape: StepShape, *, context: int) -> dict[str, int]:
    """Inputs, output and workspace, which every copy of the caches uses."""
    op, rows = shape.op, shape.rows
    heads = {"q": op.num_heads, "k": op.num_kv_heads, "v": op.num_kv_heads}
    new = {
        name: random_halves((1, rows, count, op.head_dim), seed=i)
        for i, (name, count) in enumerate(heads.items())
    }
    lengths = {"past_len": context - rows, "row_count": rows, "attend_all": 0}
    counts = {name: np.full(1, value, dtype=np.int64) for name, value in lengths.items()}
    arrays = {name: gpu.upload_new(array) for name, array in (new | counts).items()}
    arrays["y"] = gpu.allocate(new["q"].nbytes)
    arrays["blocks_read"] = gpu.allocate(8)
    for name, (dims, dtype) in shape.workspace.items():
        arrays[name] = gpu.allocate(int(np.prod(dims)) * np.dtype(dtype).itemsize)
    return arrays


def _states(gpu: Gpu, shape: StepShape, *, seed: int) -> dict[str, int]:
    dims = state_shapes(shape.op, batch=shape.batch, blocks=shape.blocks)
    return {name: gpu.upload_new(_filled(name, shape.op, of, seed)) for name, of in dims.items()}


def _filled(name: str, op: CachedAttention, dims: tuple[int, ...], seed: int) -> NDArray[Any]:
    """Random contents: what was only allocated may read faster than it should."""
    if name.endswith("_scale"):
        return np.full(dims, 0.01, dtype=np.float16)
    if name.endswith("_cache") and op.kv_dtype == "int8":
        return (random_halves(dims, seed=seed) * np.float16(30)).astype(np.int8)
    return random_halves(dims, seed=seed)


def _params(shape: StepShape, pointers: dict[str, int]) -> StepParams:
    op = shape.op
    values: dict[str, Any] = {**dict.fromkeys(POINTERS), **pointers, **shape.integers}
    return StepParams(**values, scale=op.scale, spread=op.spread)
