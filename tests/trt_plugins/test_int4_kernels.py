"""Int4MatMul's CUDA source, executed on the host, against the NumPy oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.host_kernels import host_library, kernel_file
from support.int4_cases import SOURCE, bits, random_problem, run_on_host, run_with_params
from support.int4_checks import (
    ROWS,
    check_bad_rows,
    check_bytes,
    check_oracle,
    check_repeats,
    check_rows_alone,
    make_op,
)

from selfdraft.trt_plugins.build.kernel_list import kernel_sources
from selfdraft.trt_plugins.host.launch import HostLibrary, KernelError
from selfdraft.trt_plugins.int4_matmul.contract import GROUP_SIZES
from selfdraft.trt_plugins.int4_matmul.launch import (
    FEW_ROWS,
    MANY_ROWS,
    launch_for,
    launch_with,
    memory_bytes,
)
from selfdraft.trt_plugins.int4_matmul.oracle import int4_matmul


def library() -> HostLibrary:
    return host_library(kernel_file(SOURCE))


Check = Callable[..., None]
CHECKS: tuple[Check, ...] = (
    check_oracle,
    check_rows_alone,
    check_bad_rows,
    check_repeats,
    check_bytes,
)
SHAPES = {
    # Fewer chunks than slices, a last half chunk (group 32), a strip of one output.
    "one group": (lambda group: group, 1),
    "odd groups": (lambda group: 5 * group, 130),
    "more chunks than slices": (lambda group: 512 + group, 70),
    "whole strips": (lambda group: 7 * 128, 64),
}


@pytest.mark.parametrize("group", GROUP_SIZES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
def test_kernels_keep(check: Check, shape: str, group: int) -> None:
    inputs, outputs = SHAPES[shape]
    check(library(), make_op(group, inputs=inputs(group), outputs=outputs))


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUP_SIZES)
@pytest.mark.parametrize(("inputs", "outputs"), [(896, 513), (2560, 200), (9728, 63)])
def test_kernels_keep_their_promises_at_sizes_of_models(
    group: int, inputs: int, outputs: int
) -> None:
    for seed, check in enumerate((check_oracle, check_rows_alone, check_bad_rows)):
        check(library(), make_op(group, inputs=inputs, outputs=outputs), seed=1000 * seed)


@pytest.mark.parametrize("block_rows", [*FEW_ROWS, MANY_ROWS])
def test_offsets_of_rows_exceed_32_bits(block_rows: int) -> None:
    width = 2**30  # of which one chunk is multiplied, and one strip written
    op = make_op(64, inputs=64, outputs=64)
    small = random_problem(op, rows=3)
    expected, _ = run_on_host(library(), small)
    wide = np.zeros((3, width), dtype=np.float16)  # memory that nobody touches costs nothing
    wide[:, :64] = small.x
    y = np.zeros((3, width), dtype=np.float16)
    launch = launch_with(op, rows=3, block_rows=block_rows)
    problem = replace(small, x=wide)
    run_with_params(
        library(), problem, y=y, launch=launch, seed=1, in_features=width, out_features=width
    )
    assert np.array_equal(bits(y[:, :64]), bits(expected))


def test_values_are_rounded_once_from_fp32() -> None:
    """Sums that fp16 cannot hold on the way, and codes at both ends."""
    op = make_op(128, inputs=256, outputs=64)
    problem = random_problem(op, rows=2)
    x = np.full((2, 256), 500.0, dtype=np.float16)
    x[:, 128:] = -500.0
    x[:, -1] = -499.0
    weight = np.full_like(problem.weight, -1)  # nibbles 15: code 7
    scale = np.full_like(problem.scale, 0.5)
    y, _ = run_on_host(library(), replace(problem, x=x, weight=weight, scale=scale))
    assert (y == 3.5).all(), "128 · 500 · 7 / 2 = 224,000 on the way, beyond fp16"
    weight = np.zeros_like(weight)  # code -8
    y, _ = run_on_host(library(), replace(problem, x=x, weight=weight, scale=scale))
    assert (y == -4.0).all()


def test_results_beyond_fp16_become_infinite_as_in_numpy() -> None:
    op = make_op(32, inputs=64, outputs=64)
    problem = random_problem(op, rows=1)
    huge = replace(problem, x=np.full_like(problem.x, 60000.0))
    y, _ = run_on_host(library(), huge)
    with np.errstate(over="ignore"):
        expected = int4_matmul(huge.x, huge.weight, huge.scale, op=op).astype(np.float16)
    assert np.isinf(expected).any()
    assert np.array_equal(np.isinf(y), np.isinf(expected))


@pytest.mark.parametrize("group", GROUP_SIZES)
def test_one_row_reads_little_more_than_what_memory_must_deliver(group: int) -> None:
    op = make_op(group, inputs=2560, outputs=128)
    _, traffic = run_on_host(library(), random_problem(op, rows=1))
    asked = sum(traffic.read.values()) + sum(traffic.written.values())
    again = (op.strips - 1) * 2560 * 2  # the row, once for each strip: a cache delivers it
    assert asked - again == memory_bytes(op, rows=1)


def test_limits_list_the_launches_that_are_made() -> None:
    listed = {
        name: entry
        for source in kernel_sources()
        if source.op == "int4_matmul"
        for name, entry in source.kernels.items()
    }
    launched = {}
    for group in GROUP_SIZES:
        op = make_op(group, inputs=group, outputs=1)
        for rows in ROWS:
            launch = launch_for(op, rows=rows)
            launched[launch.kernel] = (launch.threads, launch.shared_bytes)
    assert launched == {
        name: (entry.threads, entry.dynamic_shared_bytes) for name, entry in listed.items()
    }


FEW_TAIL = """\
    if (first_row + row < p.rows && column < p.out_features) {
      half_t* to = p.y + (first_row + row) * p.out_features + column;
      store_global<Traffic::output>(to, half_from_float(total));"""
MANY_TAIL = """\
    if (first_row + row < p.rows && column < p.out_features) {
      half_t* to = p.y + (first_row + row) * p.out_features + column;
      store_global<Traffic::output>(to, staged["""
SLICE_ORDER = "for (int slice = 0; slice < slices; ++slice) {\n      total"


def _without(text: str, part: str) -> tuple[str, str]:
    assert part in text
    return text, text.replace(part, "")


FAULTS: dict[str, tuple[tuple[str, str], Check, int]] = {
    # name: edit, the check that must fail, group size
    "few: rows that do not exist are read": (
        _without("if (row < p.rows && input < p.in_features)", "row < p.rows && "),
        check_oracle,
        64,
    ),
    "few: inputs that do not exist are read": (
        _without("if (row < p.rows && input < p.in_features)", " && input < p.in_features"),
        check_bad_rows,
        32,
    ),
    "few: rows that do not exist are written": (
        _without(FEW_TAIL, "first_row + row < p.rows && "),
        check_oracle,
        64,
    ),
    "few: outputs that do not exist are written": (
        _without(FEW_TAIL, " && column < p.out_features"),
        check_oracle,
        64,
    ),
    "few: slices are added before they are written": (
        ("__syncthreads();  // all slices have written", ""),
        check_oracle,
        128,
    ),
    "few: the next tile overwrites what is being added": (
        ("if (r > 0) __syncthreads();  // the tile before has been read", ""),
        check_repeats,
        128,
    ),
    "few: slices are added backwards": (
        (
            SLICE_ORDER,
            SLICE_ORDER.replace(
                "int slice = 0; slice < slices; ++slice",
                "int slice = slices - 1; slice >= 0; --slice",
            ),
        ),
        check_rows_alone,
        64,
    ),
    "few: the second chunk of a group loads its scales again": (
        ("if (chunk % Grouping<group>::step_chunks) return;", ""),
        check_bytes,
        128,
    ),
    "scales of half chunks are not applied apart": (
        _without("if (word == 3 || (by_half && word == 1)) {", " || (by_half && word == 1)"),
        check_oracle,
        32,
    ),
    "both half chunks take the first scale": (
        ("scale[by_half ? word / 2 : 0]", "scale[0]"),
        check_oracle,
        32,
    ),
    "two chunks of a group have scales of their own": (
        _without("return chunk * chunk_groups / step_chunks;", " / step_chunks"),
        check_oracle,
        128,
    ),
    "many: rows that do not exist are read": (
        _without("valid = first_row + row < p.rows && input", "first_row + row < p.rows && "),
        check_oracle,
        64,
    ),
    "many: inputs that do not exist are read": (
        _without("< p.rows && input < p.in_features;", " && input < p.in_features"),
        check_bad_rows,
        32,
    ),
    "many: rows that do not exist are written": (
        _without(MANY_TAIL, "first_row + row < p.rows && "),
        check_oracle,
        64,
    ),
    "many: outputs that do not exist are written": (
        _without(MANY_TAIL, " && column < p.out_features"),
        check_oracle,
        64,
    ),
    "many: a stage is used before it is there, or overwritten while it is read": (
        ("__syncthreads();  // chunk i is there for all; chunk i - 1 has been read", ""),
        check_oracle,
        64,
    ),
    "many: copies are not waited for": (
        ("copy_async_wait<stages - 2>();", "copy_async_wait<stages - 1>();"),
        check_oracle,
        64,
    ),
    "many: results overwrite the last chunk": (
        ("__syncthreads();  // the last chunk has been read", ""),
        check_repeats,
        32,
    ),
    "many: results leave before they are complete": (
        ("__syncthreads();  // the tile is complete", ""),
        check_oracle,
        64,
    ),
    "many: slices are not kept apart": (
        _without("if (adding.slice != slice) move", "if (adding.slice != slice) "),
        check_rows_alone,
        64,
    ),
}
QUICK = (
    "few: slices are added before they are written",
    "scales of half chunks are not applied apart",
)


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=() if f in QUICK else pytest.mark.slow) for f in FAULTS],
)
def test_a_kernel_with_a_fault_fails_its_check(fault: str) -> None:
    edit, check, group = FAULTS[fault]
    source = kernel_file(SOURCE)
    lines = source.read_text().splitlines()
    others = [x for x in lines if x.startswith("SD_KERNEL(") and f"_g{group}_" not in x]
    assert len(others) == 8, "kernels of two other groups, which need not be compiled"
    kernels = host_library(source, (edit, *((line, "") for line in others)))
    with pytest.raises((AssertionError, KernelError)):
        for seed in range(3):
            for inputs, outputs in SHAPES.values():
                check(
                    kernels, make_op(group, inputs=inputs(group), outputs=outputs), seed=100 * seed
                )
