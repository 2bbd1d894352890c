"""The speed and memory models: what each term does, alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from selfdraft.jetson.modules import module_named
from selfdraft.jetson.planner.calibration import fitted, published
from selfdraft.jetson.planner.memory import (
    BUILD_FACTOR,
    ENGINE_BYTES,
    GIB,
    Workload,
    available_bytes,
    memory_plan,
)
from selfdraft.jetson.planner.reading import dense_attention, read_bytes
from selfdraft.jetson.planner.speed import (
    Clocks,
    Efficiencies,
    Model,
    backbone_bytes,
    clocks_of,
    draft_bytes,
    prefill_ms,
    speculative_ms,
    step_ms,
    tokens_per_step,
)
from selfdraft.jetson.planner.storage import device_storage
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention

MODULE = module_named("agx-orin-64")
MAXN = clocks_of(MODULE, MODULE.mode("MAXN"))
OWN = fitted().of("Edge-LLM")


def model(name: str = "Qwen3-8B", *, weights="int4", head="fp16", kv="fp16") -> Model:
    geometry = published().geometry(name)
    storage = device_storage(geometry, weights=weights, head=head)
    return Model(geometry=geometry, storage=storage, attention=dense_attention(geometry, kv=kv))


def test_a_step_reads_weights_head_and_cache_once() -> None:
    geometry = published().geometry("Qwen3-8B")
    layers = geometry.backbone_parameters() * 66 // 128
    head = geometry.head.size * 2
    norms = 36 * (2 * 4096 + 2 * 128) * 2
    cache = 36 * 1000 * 2 * 8 * 128 * 2
    assert backbone_bytes(model(), length=1000) == layers + head + norms + cache


def test_known_size_of_qwen3_8b() -> None:
    geometry = published().geometry("Qwen3-8B")
    assert geometry.backbone_parameters() + 2 * geometry.head.size == pytest.approx(
        8.19e9, rel=2e-3
    )


def test_int8_caches_read_half_and_their_scales() -> None:
    def cache(kv: str) -> int:
        return backbone_bytes(model(kv=kv), length=4096) - backbone_bytes(model(kv=kv), length=0)

    assert cache("int8") == 36 * 4096 * 8 * (2 * 128 + 2 * 2)
    assert cache("fp16") == 36 * 4096 * 8 * (2 * 128 * 2)


def test_a_recurrent_state_is_read_and_written() -> None:
    hybrid = model("Qwen3.5-0.8B")
    linear = hybrid.geometry.linear
    assert linear is not None and linear.state_bytes == 18 * 16 * 128 * 128 * 4
    without = replace(hybrid, geometry=replace(hybrid.geometry, linear=replace(linear, head_dim=1)))
    assert backbone_bytes(hybrid, length=0) > backbone_bytes(without, length=0) + linear.state_bytes


def test_time_follows_the_bytes_at_full_clocks() -> None:
    assert OWN.gb_per_s(MAXN) == pytest.approx(OWN.bandwidth * 204.736)
    less = replace(MAXN, bandwidth_gb_s=MAXN.bandwidth_gb_s / 2)
    reading = step_ms(model(), MAXN, OWN, length=0) - OWN.layers_ms(36, MAXN)
    slow = step_ms(model(), less, OWN, length=0) - OWN.layers_ms(36, MAXN)
    assert slow == pytest.approx(2 * reading)


def test_a_low_gpu_clock_bounds_the_bandwidth_and_stretches_layers() -> None:
    low = clocks_of(MODULE, MODULE.mode("MODE_30W"))
    assert low.bandwidth_gb_s == MAXN.bandwidth_gb_s and low.num_sms == 8
    assert OWN.gb_per_s(low) < OWN.bandwidth * low.bandwidth_gb_s
    assert OWN.layers_ms(10, low) == pytest.approx(OWN.layers_ms(10, MAXN) * 1300.5 / 612)


def test_many_rows_are_bound_by_arithmetic() -> None:
    few, many = (step_ms(model(), MAXN, OWN, length=0, rows=rows) for rows in (2, 256))
    assert few == pytest.approx(step_ms(model(), MAXN, OWN, length=0))
    assert many > 2 * few


def test_a_batch_reads_the_weights_once_and_every_cache() -> None:
    one, four = (backbone_bytes(model(), length=4096, batch=batch) for batch in (1, 4))
    cache = backbone_bytes(model(), length=4096) - backbone_bytes(model(), length=0)
    assert four - one == 3 * cache


def test_the_framework_is_a_factor_on_the_whole_step() -> None:
    slower = replace(OWN, framework=1.25)
    assert step_ms(model(), MAXN, slower, length=2048) == pytest.approx(
        1.25 * step_ms(model(), MAXN, OWN, length=2048)
    )


def test_a_trimmed_draft_head_is_read_in_place_of_the_lm_head() -> None:
    full = model("Qwen3.5-9B")
    trimmed = replace(full, geometry=replace(full.geometry, draft_vocab_size=32_768))
    saved = full.geometry.head.size * 2 - 4096 * 32_768 * 66 // 128
    assert draft_bytes(full, length=0) - draft_bytes(trimmed, length=0) == saved
    plain, drafted = (speculative_ms(m, MAXN, OWN, length=2048, drafts=3) for m in (trimmed, full))
    assert plain < 0.6 * drafted


def test_tokens_per_step_multiplies_the_conditional_rates() -> None:
    assert tokens_per_step((0.8, 0.5), 0) == 1
    assert tokens_per_step((0.8, 0.5), 2) == pytest.approx(1 + 0.8 + 0.4)
    assert tokens_per_step((0.8, 0.5), 3) == pytest.approx(1 + 0.8 + 0.4 + 0.2), "last repeated"


def test_prefill_never_takes_less_than_reading_the_weights_for_each_chunk() -> None:
    short = prefill_ms(model(), MAXN, OWN, length=4, chunk=2)
    assert short >= 2 * (step_ms(model(), MAXN, OWN, length=0) - 1e-9)


def test_prefill_grows_with_the_square_of_long_prompts() -> None:
    half, whole = (prefill_ms(model(), MAXN, OWN, length=n, chunk=512) for n in (65_536, 131_072))
    assert 2.5 < whole / half < 4


def test_sparse_rows_read_their_budget_and_all_summaries() -> None:
    op = CachedAttention(
        num_heads=8,
        num_kv_heads=2,
        head_dim=64,
        scale=0.125,
        selector="mean_std",
        local_blocks=8,
        budget_tokens=4096,
        kv_dtype="fp16",
    )

    def reads(length: int, rows: int = 1) -> int:
        return read_bytes([op], length=length, rows=rows)

    row = 2 * 64 * 2
    assert reads(4096) == 2 * 4096 * row, "the budget covers it: no summaries"
    assert reads(131_072) == 2 * (4096 * row + 2048 * 2 * 64 * 2)
    assert reads(131_072, rows=3) == 2 * (-(-4096 * 12 // 10) * row + 2048 * 2 * 64 * 2)


def test_memory_adds_up_and_keeps_a_share_free() -> None:
    plan = memory_plan(model(), Workload(context=32_768), available=20 * GIB)
    assert plan.total_bytes == sum(part.num_bytes for part in plan.parts)
    assert plan.head_room_bytes == int(20 * GIB * 0.95) - plan.total_bytes
    sources = {part.name: part.source for part in plan.parts}
    assert sources["kv"] == sources["backbone"] == "exact"
    assert sources["engine"] == sources["activations"] == "estimate"


def test_building_counts_the_larger_engine_without_the_embedding() -> None:
    plan = memory_plan(model(), Workload(context=1024), available=60 * GIB)
    parts = {part.name: part.num_bytes for part in plan.parts}
    built = parts["backbone"] + parts["lm_head"]
    assert plan.build_peak_bytes == int(BUILD_FACTOR * built) + ENGINE_BYTES


def test_the_one_published_build_peak_is_met() -> None:
    """54.8 GB for an 8B model in fp16."""
    plan = memory_plan(model(weights="fp16"), Workload(context=1024), available=60 * GIB)
    assert plan.build_peak_bytes == pytest.approx(54.8e9, rel=0.05)


def test_a_model_that_runs_but_cannot_be_built_does_not_fit() -> None:
    plan = memory_plan(model(weights="fp16"), Workload(context=1024), available=30 * GIB)
    assert plan.head_room_bytes > 0 > plan.build_room_bytes and not plan.fits


@pytest.mark.parametrize("name, measured_mib", [("agx-orin-64", 62_800), ("orin-nano-8", 7486)])
def test_available_memory_stays_below_what_boards_report(name: str, measured_mib: int) -> None:
    free = available_bytes(module_named(name))
    assert 0.7 * measured_mib < free / 2**20 < measured_mib - 1000


def test_efficiencies_are_bounded_by_the_smaller_of_memory_and_sms() -> None:
    own = Efficiencies(bandwidth=0.5, layer_us=1, sm_bytes_per_clock=10, tensor=0.5)
    clocks = Clocks(bandwidth_gb_s=100, gpu_mhz=1000, num_sms=4, fp16_tflops=10)
    assert own.gb_per_s(clocks) == 40
    assert own.gb_per_s(replace(clocks, num_sms=8)) == 50
