"""Int4MatMul on a GPU: agreement with the oracle, rows alone against together, time and bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.cuda_driver import Gpu, random_halves
from benchmarks.gpu_timing import Replays, copies_beyond_cache, microseconds
from selfdraft.trt_plugins.int4_matmul.contract import Int4MatMul
from selfdraft.trt_plugins.int4_matmul.launch import Int4MatMulParams, launch_for, memory_bytes
from selfdraft.trt_plugins.int4_matmul.oracle import int4_matmul

CHECKED_ROWS = 70


def agreement(gpu: Gpu, cubin: bytes, op: Int4MatMul) -> dict[str, Any]:
    """Largest error by the norm of its row against fp64, and whether rows alone have the same bits."""
    rng = np.random.default_rng(7)
    x = random_halves((CHECKED_ROWS, op.in_features), seed=1)
    weight = rng.integers(-128, 128, op.weight_shape, dtype=np.int8)
    scale = rng.uniform(0.01, 0.1, op.scale_shape).astype(np.float16)
    pointers = {"weight": gpu.upload_new(weight), "scale": gpu.upload_new(scale)}
    together = _product(gpu, cubin, op, x, pointers)
    alone = [_product(gpu, cubin, op, x[row : row + 1], pointers)[0] for row in (0, 13, 69)]
    gpu.free_all()
    expected = int4_matmul(x, weight, scale, op=op)
    error = np.abs(together - expected) / np.linalg.norm(expected, axis=-1, keepdims=True)
    return {
        "error": float(error.max()),
        "rows_alone_equal": all(
            np.array_equal(row.view(np.uint16), together[i].view(np.uint16))
            for row, i in zip(alone, (0, 13, 69), strict=True)
        ),
    }


def _product(
    gpu: Gpu, cubin: bytes, op: Int4MatMul, x: np.ndarray, pointers: dict[str, int]
) -> np.ndarray:
    y = np.empty((len(x), op.out_features), dtype=np.float16)
    address = gpu.allocate(y.nbytes)
    params = _params(
        op, rows=len(x), x=gpu.upload_new(np.ascontiguousarray(x)), y=address, **pointers
    )
    _launch(gpu, cubin, op, params)
    gpu.download(address, y)
    return y


def timing(
    gpu: Gpu, cubin: bytes, op: Int4MatMul, *, rows: int, replays: Replays
) -> dict[str, Any]:
    """Median time of one launch, weights from memory each time; bytes that memory must deliver."""
    weight_bytes = int(np.prod(op.weight_shape))
    copies = copies_beyond_cache(gpu, weight_bytes)
    codes = np.random.default_rng(1).integers(-128, 128, op.weight_shape, dtype=np.int8)
    scale = gpu.upload_new(np.full(op.scale_shape, 0.01, dtype=np.float16))
    x = gpu.upload_new(random_halves((rows, op.in_features), seed=2))
    y = gpu.allocate(rows * op.out_features * 2)
    blocks = [
        _params(op, rows=rows, x=x, y=y, weight=gpu.upload_new(codes), scale=scale)
        for _ in range(copies)
    ]

    def work() -> None:
        for block in blocks:
            _launch(gpu, cubin, op, block)

    time = microseconds(gpu, work, parts=copies, replays=replays)
    gpu.free_all()
    return {
        "kernel": launch_for(op, rows=rows).kernel,
        "us": round(time, 3),
        "memory_bytes": memory_bytes(op, rows=rows),
        "gb_s": round(memory_bytes(op, rows=rows) / time / 1e3, 2),
    }


def _params(op: Int4MatMul, *, rows: int, **pointers: int) -> Int4MatMulParams:
    return Int4MatMulParams(
        rows=rows,
        in_features=op.in_features,
        out_features=op.out_features,
        chunks=op.chunks,
        **pointers,
    )


def _launch(gpu: Gpu, cubin: bytes, op: Int4MatMul, params: Int4MatMulParams) -> None:
    launch = launch_for(op, rows=params.rows)
    gpu.launch(cubin, launch.kernel, params, **launch.settings)
