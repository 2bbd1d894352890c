"""What the int4 kernels must keep, as checks that run on the host layer and on a GPU alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from support.int4_cases import (
    NOT_WRITTEN,
    Kernels,
    Problem,
    bits,
    random_problem,
    run_on_host,
)

from selfdraft.trt_plugins.int4_matmul.contract import Int4MatMul
from selfdraft.trt_plugins.int4_matmul.launch import (
    FEW_ROWS,
    MANY_ROWS,
    bytes_asked_for,
    launch_with,
)
from selfdraft.trt_plugins.int4_matmul.oracle import int4_matmul

ROWS = (1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 70)
MOST_ROWS = max(ROWS)
TOLERANCE = 1e-3
"""Largest error by the norm of the row: half a unit of fp16 is 2^-11 of the element itself."""


def make_op(group: int, *, inputs: int, outputs: int) -> Int4MatMul:
    return Int4MatMul(in_features=inputs, out_features=outputs, group_size=group)


def head(problem: Problem, rows: int) -> Problem:
    return replace(problem, x=problem.x[:rows].copy())


# Each check is a test of the kernels, and what a faulty kernel must fail.


def check_oracle(kernels: Kernels, op: Int4MatMul, *, seed: int = 0) -> None:
    """Every number of rows agrees with fp64; everything is written, nothing else."""
    whole = random_problem(op, rows=MOST_ROWS)
    expected = int4_matmul(whole.x, whole.weight, whole.scale, op=op)
    norms = np.linalg.norm(expected, axis=-1, keepdims=True)
    for rows in ROWS:
        y, _ = run_on_host(kernels, head(whole, rows), seed=seed + rows)
        assert not (bits(y) == NOT_WRITTEN).any(), f"{rows} rows: an output was not written"
        error = np.abs(y.astype(np.float64) - expected[:rows]) / norms[:rows]
        assert error.max() <= TOLERANCE, f"{rows} rows: off by {error.max():.2e}"


def check_rows_alone(kernels: Kernels, op: Int4MatMul, *, seed: int = 0) -> None:
    """A row's bits depend neither on the other rows, nor on its place, nor on the kernel."""
    whole = random_problem(op, rows=MOST_ROWS)
    together, _ = run_on_host(kernels, whole, seed=seed)
    for row in (0, 5, 13, 69):
        y, _ = run_on_host(kernels, replace(whole, x=whole.x[row : row + 1].copy()), seed=row)
        assert np.array_equal(bits(y[0]), bits(together[row])), f"row {row} alone"
    for block_rows in (*FEW_ROWS, MANY_ROWS):
        launch = launch_with(op, rows=MOST_ROWS, block_rows=block_rows)
        y, _ = run_on_host(kernels, whole, seed=seed + block_rows, launch=launch)
        assert np.array_equal(bits(y), bits(together)), launch.kernel
    backwards, _ = run_on_host(kernels, replace(whole, x=whole.x[::-1].copy()), seed=seed)
    assert np.array_equal(bits(backwards[::-1]), bits(together)), "rows in another order"


def check_bad_rows(kernels: Kernels, op: Int4MatMul, *, seed: int = 0) -> None:
    """Rows of NaN and infinity (padding may hold anything) leave their neighbours alone."""
    for rows in (3, 11, 24, 67):
        clean = random_problem(op, rows=rows)
        spoiled = replace(clean, x=clean.x.copy())
        spoiled.x[1::2] = np.nan
        spoiled.x[2::4] = np.inf
        expected, _ = run_on_host(kernels, clean, seed=seed)
        found, _ = run_on_host(kernels, spoiled, seed=seed + 1)
        assert np.array_equal(bits(found[::4]), bits(expected[::4])), f"{rows} rows"
        assert np.isnan(found[1::2]).all()


def check_repeats(kernels: Kernels, op: Int4MatMul, *, seed: int = 0) -> None:
    """Twenty random schedules give the same bits, in every kernel."""
    for rows in (3, 16, 20, 65):
        problem = random_problem(op, rows=rows)
        results = {run_on_host(kernels, problem, seed=seed + i)[0].tobytes() for i in range(20)}
        assert len(results) == 1, f"{rows} rows: {len(results)} different results"


def check_bytes(kernels: Kernels, op: Int4MatMul, *, seed: int = 0) -> None:
    """Loads and stores name the bytes that the formula says, of each kind."""
    for rows in ROWS:
        _, traffic = run_on_host(kernels, random_problem(op, rows=rows), seed=seed)
        expected = bytes_asked_for(op, rows=rows)
        written = {"output": expected.pop("output")}
        assert traffic.read == expected and traffic.written == written, f"{rows} rows"
