"""Random Int4MatMul problems, and the kernels run on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from selfdraft.trt_plugins.host.launch import KernelLaunch, Params, Traffic, params_from
from selfdraft.trt_plugins.int4_matmul.contract import Int4MatMul
from selfdraft.trt_plugins.int4_matmul.launch import (
    Int4MatMulParams,
    launch_for,
)
from selfdraft.trt_plugins.int4_matmul.packing import Codes, Half, pack_codes, pack_scales

SOURCE = "int4_matmul/csrc/int4_matmul.cu"
NOT_WRITTEN = 0x7E01
"""A NaN that no kernel computes: elements of y that nobody wrote keep it."""


class Kernels(Protocol):
    """What runs the kernels of a file: the host layer, or a GPU."""

    def launch(
        self,
        kernel: str,
        params: Params,
        *,
        arrays: Sequence[NDArray[Any]],
        grid: tuple[int, int, int],
        threads: int,
        shared_bytes: int,
        seed: int = 0,
    ) -> Traffic:
        """As ``HostLibrary.launch``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Rows ``x [rows, K]`` fp16 and packed weights of one node."""

    op: Int4MatMul
    x: Half
    weight: Codes
    scale: Half


def random_problem(op: Int4MatMul, *, rows: int, seed: int = 0) -> Problem:
    """Codes use their whole range, scales differ by outputs and groups."""
    rng = np.random.default_rng((seed, op.in_features, op.out_features, op.group_size))
    codes = rng.integers(-8, 8, (op.in_features, op.out_features), dtype=np.int8)
    groups = op.in_features // op.group_size
    scales = rng.uniform(0.01, 0.1, (groups, op.out_features)).astype(np.float16)
    x = rng.standard_normal((rows, op.in_features)).astype(np.float16)
    return Problem(op=op, x=x, weight=pack_codes(codes, op), scale=pack_scales(scales, op))


def run_on_host(
    library: Kernels, problem: Problem, *, seed: int = 0, launch: KernelLaunch | None = None
) -> tuple[Half, Traffic]:
    """``y [rows, N]`` of one launch, and the bytes that it moved."""
    op, rows = problem.op, len(problem.x)
    y = np.full((rows, op.out_features), NOT_WRITTEN, dtype=np.uint16).view(np.float16)
    chosen = launch or launch_for(op, rows=rows)
    return y, run_with_params(library, problem, y=y, launch=chosen, seed=seed)


def run_with_params(
    library: Kernels,
    problem: Problem,
    *,
    y: Half,
    launch: KernelLaunch,
    seed: int,
    **changes: int,
) -> Traffic:
    """One launch that writes to ``y``; ``changes``: parameters other than those of the node."""
    op = problem.op
    sizes = {"in_features": op.in_features, "out_features": op.out_features, "chunks": op.chunks}
    params, arrays = params_from(
        Int4MatMulParams,
        x=problem.x,
        weight=problem.weight,
        scale=problem.scale,
        y=y,
        rows=len(problem.x),
        **(sizes | changes),
    )
    return library.launch(
        launch.kernel,
        params,
        arrays=arrays,
        **launch.settings,
        seed=seed,
    )


def bits(y: Half) -> NDArray[np.uint16]:
    """The bit patterns, so that NaNs compare too."""
    return y.view(np.uint16)
