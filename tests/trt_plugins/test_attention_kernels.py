"""The kernels of CachedAttention, executed on the host, against the NumPy oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.kernel_cases import (
    Case,
    case_name,
    covering_array,
    make_kernel_op,
    step_from,
    step_of,
)
from support.kernel_checks import bits, check_attention, check_selection, check_step, seen_blocks
from support.kernel_step import KernelResult, KernelStep, random_step, run_kernels

from selfdraft.errors import ConfigError
from selfdraft.trt_plugins.cached_attention.contract import Selector
from selfdraft.trt_plugins.cached_attention.launches import StepShape

SCORING: tuple[Selector, ...] = ("mean_std", "min_max", "infllm_v2")
SELECTORS: tuple[Selector, ...] = ("all", "window", *SCORING)
QUICK_CASES = covering_array(size=200, seed=1)
SLOW_CASES = covering_array(size=2000, seed=2)


def same_bits(left: KernelResult, right: KernelResult) -> None:
    """Output and states equal bit for bit."""
    np.testing.assert_array_equal(bits(left.y), bits(right.y))
    for name, array in left.states.items():
        np.testing.assert_array_equal(bits(array), bits(right.states[name]), err_msg=name)


@pytest.mark.parametrize("case", QUICK_CASES, ids=case_name)
def test_a_step_of_the_kernels_is_that_of_the_oracle(case: Case) -> None:
    seed = QUICK_CASES.index(case)
    step = step_of(case, seed=seed)
    check_step(step, run_kernels(step, seed=seed))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(40))
def test_a_step_of_the_kernels_is_that_of_the_oracle_on_the_full_grid(part: int) -> None:
    for seed, case in enumerate(SLOW_CASES[part::40]):
        step = step_of(case, seed=seed)
        check_step(step, run_kernels(step, seed=seed))


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", ["fp16", "int8"])
@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("length", [131_071, 131_072])
def test_a_step_at_128k_is_that_of_the_oracle(length: int, selector: str, kv_dtype: str) -> None:
    op = make_kernel_op(selector=selector, kv_dtype=kv_dtype, head_dim=128, num_kv_heads=1, group=4)
    step = random_step(op, [length], rows=4, seed=length, splits=16)
    check_step(step, run_kernels(step, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 5, 16])
@pytest.mark.parametrize("selector", ["all", "mean_std", "infllm_v2"])
def test_the_longest_step_is_that_of_the_oracle(selector: str, group: int) -> None:
    op = make_kernel_op(selector=selector, group=group, num_kv_heads=1, budget_tokens=512)
    step = random_step(op, [1000, 70], rows=65, seed=group)
    check_step(step, run_kernels(step, seed=2))


@pytest.mark.parametrize("kv_dtype", ["fp16", "int8"])
@pytest.mark.parametrize("selector", SCORING)
def test_selecting_everything_equals_dense_bit_for_bit(selector: str, kv_dtype: str) -> None:
    op = make_kernel_op(selector=selector, kv_dtype=kv_dtype, budget_tokens=704)
    step = random_step(op, [700, 300], rows=4, seed=3)
    covering = run_kernels(step, seed=1)
    asked = run_kernels(replace(step, attend_all=np.ones(2, dtype=np.int64)), seed=2)
    same_bits(covering, asked)
    states = {name: array for name, array in step.states.items() if name != "summary"}
    dense = run_kernels(replace(step, op=replace(op, selector="all"), states=states), seed=3)
    np.testing.assert_array_equal(bits(covering.y), bits(dense.y))
    short = run_kernels(replace(step, op=replace(op, budget_tokens=640)), seed=1)
    assert (bits(short.y[0]) != bits(dense.y[0])).any()


def alone(step: KernelStep) -> tuple[list[Any], KernelStep]:
    """The rows of a step one after the other: their outputs, and the step as it then stands."""
    found, states = [], step.states
    for row in range(step.q.shape[1]):
        one = slice(row, row + 1)
        single = replace(
            step,
            q=step.q[:, one].copy(),
            k=step.k[:, one].copy(),
            v=step.v[:, one].copy(),
            states=states,
            past_len=step.past_len + row,
            row_count=np.ones_like(step.row_count),
        )
        result = run_kernels(single, seed=row)
        states = result.states
        found.append(result.y[:, 0])
    return found, replace(step, states=states)


def check_rows_alone(step: KernelStep, **options: Any) -> None:
    together = run_kernels(step, seed=5, **options)
    outputs, after = alone(step)
    for row, y in enumerate(outputs):
        np.testing.assert_array_equal(bits(y), bits(together.y[:, row]), err_msg=f"row {row}")
    for name, array in together.states.items():
        np.testing.assert_array_equal(bits(array), bits(after.states[name]), err_msg=name)


@pytest.mark.parametrize("kv_dtype", ["fp16", "int8"])
@pytest.mark.parametrize(("selector", "group"), list(zip(SELECTORS, (3, 5, 2, 16, 1), strict=True)))
def test_rows_alone_are_bit_for_bit_what_they_are_together(
    selector: str, group: int, kv_dtype: str
) -> None:
    op = make_kernel_op(
        selector=selector, kv_dtype=kv_dtype, group=group, num_kv_heads=1, budget_tokens=384
    )
    check_rows_alone(random_step(op, [710, 130], rows=8, seed=group, splits=4))


@pytest.mark.parametrize("kv_dtype", ["fp16", "int8"])
def test_twenty_runs_under_random_schedules_are_bit_for_bit_the_same(kv_dtype: str) -> None:
    op = make_kernel_op(selector="mean_std", kv_dtype=kv_dtype, budget_tokens=320)
    step = random_step(op, [650, 200], rows=5, seed=6)
    first = run_kernels(step, seed=0)
    for seed in range(1, 20):
        again = run_kernels(step, seed=seed)
        same_bits(first, again)
        np.testing.assert_array_equal(first.workspace["list_count"], again.workspace["list_count"])


@pytest.mark.parametrize("kv_dtype", ["fp16", "int8"])
@pytest.mark.parametrize("selector", SELECTORS)
def test_nan_in_blocks_that_no_row_sees_is_harmless(selector: str, kv_dtype: str) -> None:
    op = make_kernel_op(
        selector=selector,
        kv_dtype=kv_dtype,
        budget_tokens=384,
        sliding_window=200 * (selector in ("all", "window")),
    )
    step = random_step(op, [900, 460], rows=4, seed=7)
    clean = run_kernels(step)
    states = {name: array.copy() for name, array in step.states.items()}
    poisoned = 0
    for slot, head in np.ndindex(2, op.num_kv_heads):
        rows = [seen_blocks(step, clean, slot=slot, kv_head=head, row=r) for r in range(4)]
        last = max(len(seen) for seen in rows)
        seen = np.zeros(last, dtype=np.bool_)
        for row in rows:
            seen[: len(row)] |= row
        # The block before past_len is read for its summary.
        for block in np.flatnonzero(~seen[: int(step.past_len[slot] - 1) // 64]):
            for name in ("k", "v"):
                kind = "scale" if kv_dtype == "int8" else "cache"
                states[f"{name}_{kind}"][slot, block, head] = np.nan
            poisoned += 1
    assert poisoned
    again = run_kernels(replace(step, states=states))
    np.testing.assert_array_equal(bits(again.y), bits(clean.y))


def test_nan_in_a_later_row_of_another_tile_cannot_reach_an_earlier_one() -> None:
    step = random_step(make_kernel_op(selector="mean_std", group=8), [600], rows=4, seed=8)
    clean = run_kernels(step).y[:, :2]
    k, v = step.k.copy(), step.v.copy()
    k[:, 2:], v[:, 2:] = np.nan, np.nan
    np.testing.assert_array_equal(bits(run_kernels(replace(step, k=k, v=v)).y[:, :2]), bits(clean))


@pytest.mark.parametrize("selector", SCORING)
def test_blocks_of_equal_scores_are_taken_in_id_order(selector: str) -> None:
    op = make_kernel_op(selector=selector, budget_tokens=64 * 8, num_kv_heads=1)
    step = equal_keys(op)
    result = run_kernels(step)
    check_selection(step, result)
    blocks, rows = result.lists(0, 0)[0]
    local = op.local_blocks
    assert blocks.tolist() == [*range(8 - local), *range(25 - local, 25)]
    assert (rows == 0b11).all()


def equal_keys(op: Any) -> KernelStep:
    """All keys of the context are the same, and so are all scores."""
    step = random_step(op, [1600], rows=2, seed=9)
    states = {name: array.copy() for name, array in step.states.items()}
    states["k_cache"][:] = states["k_cache"][:, :1, :, :1]
    first = states["k_cache"][0, 0, 0, 0]
    states["summary"][:] = 0
    kinds = {"mean_std": [0], "min_max": [0], "infllm_v2": [0, 1, 2, 3, 4]}[op.selector]
    states["summary"][:, :, :, kinds] = first
    return replace(step, states=states, k=np.broadcast_to(first, step.k.shape).copy())


@pytest.mark.parametrize("selector", SCORING)
def test_a_block_with_nan_keys_is_chosen_last(selector: str) -> None:
    op = make_kernel_op(selector=selector, budget_tokens=64 * 8, num_kv_heads=1)
    step = random_step(op, [1600], rows=1, seed=10)
    states = {name: array.copy() for name, array in step.states.items()}
    states["summary"][0, 0, 10] = np.nan
    step = replace(step, states=states)
    check_selection(step, run_kernels(step))


def test_scores_that_all_are_nan_choose_in_id_order() -> None:
    op = make_kernel_op(selector="mean_std", budget_tokens=64 * 8, num_kv_heads=1)
    step = random_step(op, [1600], rows=1, seed=11)
    step.states["summary"][:] = np.nan
    blocks, _ = run_kernels(step).lists(0, 0)[0]
    assert blocks.tolist() == [0, 1, 2, 3, 4, 5, 23, 24]


@pytest.mark.parametrize("selector", SCORING)
def test_a_budget_share_follows_the_rows_position(selector: str) -> None:
    op = make_kernel_op(selector=selector, budget_tokens=0, budget_share=0.6)
    step = random_step(op, [1285, 640], rows=8, seed=12)
    check_step(step, run_kernels(step))


@pytest.mark.parametrize("selector", SELECTORS)
def test_a_launch_serves_other_lengths_on_the_workspace_it_left(selector: str) -> None:
    op = make_kernel_op(selector=selector, budget_tokens=320)
    workspace = None
    for seed, lengths in enumerate([[700, 60], [65, 701], [1, 64], [640, 641]]):
        step = random_step(
            op, lengths, rows=4, seed=seed, spare_blocks=13 - (max(lengths) + 65) // 64
        )
        result = run_kernels(step, workspace=workspace)
        workspace = result.workspace
        check_attention(step, result)
        check_selection(step, result)


@pytest.mark.parametrize("kv_dtype", ["fp16", "int8"])
def test_large_and_small_values_keep_the_error_bound(kv_dtype: str) -> None:
    step = step_from(
        selector="all",
        group=4,
        batch=1,
        rows=3,
        length=200,
        budget_blocks=4,
        sliding_window=0,
        splits=2,
        dense_slot=False,
        seed=13,
        kv_dtype=kv_dtype,
    )
    for size in (2.0**-20, 2.0**-12, 2.0**8):
        states = {name: array.copy() for name, array in step.states.items()}
        kind = "v_scale" if kv_dtype == "int8" else "v_cache"
        states[kind] = (states[kind].astype(np.float64) * size).astype(np.float16)
        scaled = replace(step, states=states, v=(step.v * size).astype(np.float16))
        check_attention(scaled, run_kernels(scaled))


def test_shapes_that_the_kernels_do_not_take_are_refused() -> None:
    op = make_kernel_op()
    for changes, message in [
        ({"head_dim": 96}, "head_dim 96"),
        ({"kv_dtype": "fp32"}, "kv_dtype fp32"),
        ({"num_heads": 34}, "group 17"),
    ]:
        with pytest.raises(ConfigError, match=message):
            StepShape(op=replace(op, **changes), batch=1, rows=1, blocks=4, splits=1)
    with pytest.raises(ConfigError, match="65536 cache blocks"):
        StepShape(op=op, batch=1, rows=1, blocks=65536, splits=1)
