"""The predictions of docs/kernels.md: up to date, and equal to figures worked out by hand."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.kernel_step import random_step, run_kernels

from selfdraft.jetson.modules import module_named
from selfdraft.trt_plugins.build.kernel_list import kernel_sources
from selfdraft.trt_plugins.int4_matmul.contract import Int4MatMul

DOCS = Path(__file__).parents[2] / "docs"
ORIN = module_named("agx-orin-64")


@pytest.fixture(scope="module")
def estimates() -> ModuleType:
    name = "kernel_estimates"
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_the_page_are_up_to_date(estimates: ModuleType) -> None:
    text = (DOCS / "kernels.md").read_text(encoding="utf-8")
    assert text == estimates.page(text), "run: python docs/kernel_estimates.py"


def test_the_page_says_that_its_times_are_estimates_and_names_every_operator() -> None:
    text = (DOCS / "kernels.md").read_text(encoding="utf-8")
    assert "every time on this page is an estimate" in text
    for source in kernel_sources():
        assert f"trt_plugins/{source.op}/" in text


def test_a_delta_net_reads_its_state_each_step_and_writes_it_once_in_eight(
    estimates: ModuleType,
) -> None:
    op = estimates.QWEN3_5_4B
    state = 32 * 128 * 128 * 4
    scan = {rows: _scan(estimates, op, rows=rows).memory_bytes for rows in (1, 2)}
    assert state * 9 / 8 < scan[1] < state * 9.8 / 8, "two or three rows of log and gates beside it"
    assert state / 8 < scan[2] - scan[1] < state * 1.2 / 8, "twice the rows, twice the writes"


def _scan(estimates: ModuleType, op: Any, *, rows: int) -> Any:
    works = estimates.delta_work(op, estimates.delta_steps(rows=rows))
    return next(work for work in works if work.kernel == "delta_scan")


@pytest.mark.parametrize(
    ("kv_heads", "kv_dtype", "kernel", "memory_us"),
    [
        # 2,048 blocks of 512 bytes a head, less sinks and window; 4,096 tokens of 512 bytes.
        (8, "fp16", "score", 54.5),
        (8, "fp16", "attend", 109.3),
        (8, "int8", "attend", 55.6),
        (2, "fp16", "score", 13.7),
        (2, "fp16", "attend", 27.4),
    ],
)
def test_attention_at_128k_takes_what_its_bytes_take(
    estimates: ModuleType, kv_heads: int, kv_dtype: str, kernel: str, memory_us: float
) -> None:
    op = estimates.attention_op(replace(estimates.QWEN3_8B, kv_heads=kv_heads), kv_dtype=kv_dtype)
    works = estimates.attention_work(op, context=131072, rows=1, splits=4)
    work = next(work for work in works if work.kernel == kernel)
    assert estimates.predicted_us(work, ORIN) - estimates.LAUNCH_US == pytest.approx(
        memory_us, rel=0.01
    )


def test_a_context_within_the_budget_is_read_whole_and_not_scored(estimates: ModuleType) -> None:
    op = estimates.attention_op(estimates.QWEN3_8B, kv_dtype="fp16", budget=4096)
    works = {w.kernel: w for w in estimates.attention_work(op, context=4096, rows=1, splits=4)}
    assert works["score"].mma_flops == 0 and works["select"].waits == 0
    assert works["attend"].memory_bytes == 8 * 4096 * 512 + 4096 * 2


@pytest.mark.parametrize(("rows", "bound"), [(1, "memory"), (16, "memory"), (512, "arithmetic")])
def test_few_rows_wait_for_memory_and_many_for_arithmetic(
    estimates: ModuleType, rows: int, bound: str
) -> None:
    op = Int4MatMul(in_features=4096, out_features=4096, group_size=128)
    work = estimates.matmul_work(op, rows=rows)
    least = work.memory_bytes / (0.75 * ORIN.bandwidth_gb_s() * 1e3)
    time = estimates.predicted_us(work, ORIN) - estimates.LAUNCH_US
    assert (time == pytest.approx(least)) == (bound == "memory")
    assert time >= least


def test_each_limit_can_decide_and_waits_and_gap_are_added(estimates: ModuleType) -> None:
    nothing = estimates.Work(kernel="none", memory_bytes=0)
    gap = estimates.predicted_us(nothing, ORIN)
    assert gap == estimates.LAUNCH_US
    for change, expected in (
        ({"memory_bytes": 153_552_000}, 1000.0),  # 0.75 of 204.736 GB/s
        ({"mma_flops": 21_307_392_000}, 1000.0),  # half of 42.6 TFLOPS
        ({"instructions": 49_939_200}, 1000.0),  # 0.6 · 4 schedulers · 16 SMs · 1,300.5 MHz
        ({"waits": 4000}, 1000.0),
    ):
        assert estimates.predicted_us(replace(nothing, **change), ORIN) - gap == pytest.approx(
            expected, rel=1e-4
        )


@pytest.mark.parametrize("kv_dtype", ["fp16", "int8"])
def test_predicted_loads_of_a_dense_chunk_are_those_of_the_kernel(
    estimates: ModuleType, kv_dtype: str
) -> None:
    shape = replace(estimates.QWEN3_8B, heads=8, kv_heads=2, head_dim=64)
    op = replace(estimates.attention_op(shape, kv_dtype=kv_dtype), selector="all", spread=1.0)
    step = replace(random_step(op, [640], rows=40, seed=2), prefill=True)
    counted = run_kernels(step).traffic["prefill"]
    work = estimates.prefill_work(op, context=640, rows=40, dense=True)
    loaded = counted.read["kv"] + counted.read.get("scale", 0)
    assert loaded == pytest.approx(work.cache_bytes, rel=0.02)
    # Two kv heads of keys and values once, and q and y of eight heads.
    token_bytes = {"fp16": 2 * 64 * 2, "int8": 2 * 64 + 4}[kv_dtype]
    assert work.memory_bytes == 2 * 640 * token_bytes + 2 * 40 * 8 * 64 * 2


def test_a_sparse_chunk_at_length_does_a_small_part_of_a_dense_one(estimates: ModuleType) -> None:
    op = estimates.attention_op(estimates.QWEN3_8B, kv_dtype="fp16")
    dense, sparse = (
        estimates.prefill_work(op, context=131_072, rows=512, dense=dense)
        for dense in (True, False)
    )
    assert dense.mma_flops == 32 * sparse.mma_flops == 4 * 8 * 16 * 128 * 131_072 * 128
    assert sparse.memory_bytes < dense.memory_bytes
    short = [estimates.prefill_work(op, context=4096, rows=512, dense=d) for d in (True, False)]
    assert short[0] == short[1], "the budget covers it"


@pytest.mark.parametrize("kv_dtype", ["fp16", "int8"])
@pytest.mark.parametrize("context", [256, 1024])
def test_predicted_bytes_are_those_that_the_kernels_ask_for(
    estimates: ModuleType, context: int, kv_dtype: str
) -> None:
    """On the host, at a full block: within 2 % of keys, values, scales, summaries and queries."""
    shape = replace(estimates.QWEN3_8B, heads=8, kv_heads=2, head_dim=64)
    op = estimates.attention_op(shape, kv_dtype=kv_dtype, budget=512)
    step = random_step(op, [context], rows=1, seed=1, splits=2)
    counted = run_kernels(step).traffic
    works = estimates.attention_work(op, context=context, rows=1, splits=2)
    predicted = {work.kernel: work.memory_bytes for work in works}
    kinds = ("kv", "scale", "summary", "rows")
    for kernel in ("score", "attend"):
        read = sum(counted[kernel].read.get(kind, 0) for kind in kinds)
        # Each block of threads reads the queries of its tile; memory delivers them once.
        queries = counted[kernel].read.get("rows", 0)
        once = min(queries, 8 * 64 * 2)
        assert read - queries + once == pytest.approx(predicted[kernel], rel=0.02)
