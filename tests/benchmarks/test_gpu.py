"""``benchmarks.gpu`` from end to end on an imitated GPU: its times mean nothing, its path is the real one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.fake_cuda import MILLISECONDS, FakeCompiler, FakeCuda

from benchmarks import gpu as gpu_benchmark
from benchmarks.cuda_driver import Gpu
from benchmarks.gpu import Plan, measure
from benchmarks.gpu_attention import cache_bytes, summary_bytes
from benchmarks.gpu_timing import Replays, copies_beyond_cache
from selfdraft.errors import DeviceError
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.gated_delta_rule.contract import GatedDeltaRule
from selfdraft.trt_plugins.int4_matmul.contract import Int4MatMul
from selfdraft.trt_plugins.int4_matmul.launch import memory_bytes


def _op(kv_dtype: str = "fp16") -> CachedAttention:
    return CachedAttention(
        num_heads=4,
        num_kv_heads=1,
        head_dim=64,
        scale=0.125,
        selector="mean_std",
        budget_tokens=256,
        kv_dtype=kv_dtype,  # type: ignore[arg-type]
    )


PLAN = Plan(
    matrices=((64, 64),),
    rows=(1, 40),
    group=64,
    checked=(128, 70),
    attention=(_op("fp16"), _op("int8")),
    delta=GatedDeltaRule(
        num_key_heads=1, num_value_heads=2, key_dim=64, value_dim=64, taps=4, row_dtype="fp16"
    ),
    contexts=(192, 700),
    step_rows=(1, 2),
    replays=Replays(warm_up=1, timed=1),
    copy_bytes=1 << 20,
)


@pytest.fixture(scope="module")
def run() -> tuple[FakeCuda, list[dict[str, Any]]]:
    """The driver after the run, and its records."""
    cuda = _small_cache()
    return cuda, list(measure(Gpu(cuda), FakeCompiler(), PLAN))


def test_every_figure_of_the_plan_becomes_a_record(
    run: tuple[FakeCuda, list[dict[str, Any]]],
) -> None:
    _, records = run
    names = [entry["name"] for entry in records]
    assert names[:3] == [f"int4 agreement, group {group}" for group in (32, 64, 128)]
    assert "int4 64x64, 40 rows" in names and "attention int8 at 700, 2 rows" in names
    assert len(names) == len(set(names)) == 3 + 2 + 8 + 2
    assert all(entry["gpu"] == "imitated GPU" and entry["arch"] == "sm_87" for entry in records)


def test_agreement_is_judged_and_times_follow_from_the_events(
    run: tuple[FakeCuda, list[dict[str, Any]]],
) -> None:
    _, records = run
    assert all(entry["met"] for entry in records[:3])
    entry = next(entry for entry in records if entry["name"] == "int4 64x64, 1 rows")
    copies = copies_beyond_cache(Gpu(_small_cache()), 2048)
    op = Int4MatMul(in_features=64, out_features=64, group_size=64)
    assert entry["us"] == pytest.approx(MILLISECONDS * 1e3 / copies, abs=1e-3)
    assert entry["gb_s"] == pytest.approx(memory_bytes(op, rows=1) / entry["us"] / 1e3, abs=0.01)
    assert entry["met"] is None, "a matrix as small as this is not judged"


def test_a_step_is_timed_by_kernel_and_all_memory_is_given_back(
    run: tuple[FakeCuda, list[dict[str, Any]]],
) -> None:
    cuda, records = run
    step = next(entry for entry in records if entry["name"] == "attention fp16 at 700, 1 rows")
    assert [kernel.partition("_")[0] for kernel in step["us_by_kernel"]] == [
        *("append", "score", "select", "attend", "combine")
    ]
    assert step["memory_bytes"] == 256 * 256 + (11 - 1 - 2) * 2 * 64 * 2
    delta = next(entry for entry in records if entry["name"] == "gated delta rule, 2 rows")
    assert list(delta["us_by_kernel"]) == [f"delta_{x}_k64_v64" for x in ("mix", "scan", "log")]
    # State, log of 3 + 3 rows and its gates, the step's rows, outputs and two written rows, weights.
    read = 2 * 64 * 64 * 4 + 6 * 256 * 2 + 3 * 4 * 4 + 2 * (256 * 2 + 4 * 4) + 256 * 4 * 4
    assert delta["memory_bytes"] == read + 2 * (256 * 2 + 4 * 4) + 2 * 128 * 4
    assert not cuda.buffers
    assert {"attend_int8_d64", "score_blocks_d64", "int4_matmul_g64_many"} <= set(cuda.launched)


def test_a_share_below_the_mark_is_a_miss_where_it_is_judged() -> None:
    found = {"us": 10.0, "gb_s": 74.0}
    about = {"copy_gb_s": 100.0}
    assert gpu_benchmark._judged("x", found, about, judged=True)["met"] is False
    assert gpu_benchmark._judged("x", found | {"gb_s": 76.0}, about, judged=True)["met"] is True
    assert gpu_benchmark._judged("x", found, about, judged=False)["met"] is None


def test_bytes_of_a_step_are_those_of_tokens_scales_and_scored_summaries() -> None:
    op = replace(_op("int8"), num_heads=8, num_kv_heads=2)
    assert cache_bytes(op, tokens=256) == 2 * 256 * (2 * 64 + 4)
    assert summary_bytes(op, context=256) == 0
    assert summary_bytes(op, context=640) == 2 * (10 - 1 - 2) * 2 * 64 * 2


def test_without_a_driver_the_command_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.cuda_driver.LIBRARY", "libcuda-missing.so")
    assert gpu_benchmark.main([]) == DeviceError.exit_code
    assert "there is no CUDA driver" in capsys.readouterr().err


def _small_cache() -> FakeCuda:
    """A second-level cache of 1,000 bytes, so that few copies do."""
    cuda = FakeCuda()
    cuda.attributes = cuda.attributes | {38: 1000}
    return cuda
