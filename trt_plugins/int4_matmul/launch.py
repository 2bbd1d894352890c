"""Which kernel computes a number of rows, how it is launched, and the bytes it moves.

The only values that decide are shapes, so a captured graph launches the same kernel with the same grid
each time. Numbers of rows change the kernel and its speed, never a result.
"""

from __future__ import annotations

from ctypes import c_int32, c_int64

from selfdraft.trt_plugins.host.launch import POINTER, KernelLaunch, params_kind
from selfdraft.trt_plugins.int4_matmul.contract import (
    CHUNK_BYTES,
    CHUNK_INPUTS,
    SLICES,
    STRIP_OUTPUTS,
    Int4MatMul,
)

FEW_ROWS = (8, 16, 32)
"""Rows of a thread block of the kernels for few rows: the least that holds all of them is taken."""
MANY_ROWS = 64
"""Rows of a thread block of the kernel for many rows."""
FEW_THREADS = 32 * SLICES
MANY_THREADS = 128
FEW_SHARED_BYTES = SLICES * 8 * (STRIP_OUTPUTS + 4) * 4
"""Partial sums fp32 ``[slice][8 rows][outputs, padded]``."""
STAGES = 3
STAGE_BYTES = MANY_ROWS * CHUNK_INPUTS * 2 + CHUNK_BYTES + 2 * STRIP_OUTPUTS * 2
"""A chunk of the rows, of the codes, and up to two groups of scales."""
HALF_BYTES = 2

Int4MatMulParams = params_kind(
    "Int4MatMulParams",
    x=POINTER,
    weight=POINTER,
    scale=POINTER,
    y=POINTER,
    rows=c_int64,
    in_features=c_int32,
    out_features=c_int32,
    chunks=c_int32,
)
"""``struct Int4MatMulParams`` of csrc/int4_matmul.cu."""


def launch_for(op: Int4MatMul, *, rows: int) -> KernelLaunch:
    """The launch that computes ``rows`` (at least 1) rows of x: grid of blocks of rows, strips of outputs."""
    assert rows >= 1, f"{rows} rows"
    for block_rows in FEW_ROWS:
        if rows <= block_rows:
            return launch_with(op, rows=rows, block_rows=block_rows)
    return launch_with(op, rows=rows, block_rows=MANY_ROWS)


def launch_with(op: Int4MatMul, *, rows: int, block_rows: int) -> KernelLaunch:
    """The launch of the kernel that computes ``block_rows`` rows in a thread block."""
    few = block_rows in FEW_ROWS
    suffix = f"r{block_rows}" if few else "many"
    return KernelLaunch(
        file="int4_matmul",
        kernel=f"int4_matmul_g{op.group_size}_{suffix}",
        grid=(-(-rows // block_rows), op.strips, 1),
        threads=FEW_THREADS if few else MANY_THREADS,
        shared_bytes=FEW_SHARED_BYTES if few else STAGES * STAGE_BYTES,
    )


def bytes_asked_for(op: Int4MatMul, *, rows: int) -> dict[str, int]:
    """Bytes that a launch's loads and stores name, caches ignored; keys as in ``device.cuh``.

    Codes and scales are read once for each block of rows, the rows once for each strip.
    """
    launch = launch_for(op, rows=rows)
    row_blocks = launch.grid[0]
    # The kernel for many rows fetches a group's scales with each of its chunks.
    again = op.step_chunks if launch.kernel.endswith("many") else 1
    return {
        "weight": row_blocks * op.strips * op.chunks * CHUNK_BYTES,
        "scale": row_blocks * op.strips * op.groups * STRIP_OUTPUTS * HALF_BYTES * again,
        "rows": op.strips * rows * op.in_features * HALF_BYTES,
        "output": rows * op.out_features * HALF_BYTES,
    }


def memory_bytes(op: Int4MatMul, *, rows: int) -> int:
    """Bytes that must cross the memory bus: everything once."""
    weights = op.strips * (op.chunks * CHUNK_BYTES + op.groups * STRIP_OUTPUTS * HALF_BYTES)
    return weights + rows * (op.in_features + op.out_features) * HALF_BYTES
