"""The prefill kernel: many rows at once, dense or over each row's own blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.kernel_cases import make_kernel_op
from support.kernel_checks import bits, check_attention, check_step
from support.kernel_step import KernelStep, random_step, run_kernels

SELECTORS = ("all", "window", "mean_std", "min_max", "infllm_v2")
CASES = [
    ("all", "fp16", 64, 4, 80),
    ("window", "int8", 128, 1, 66),
    ("mean_std", "fp16", 128, 3, 100),
    ("min_max", "int8", 64, 16, 12),
    ("infllm_v2", "int8", 256, 5, 30),
    ("all", "int8", 256, 8, 30),
    ("mean_std", "fp16", 256, 2, 70),
    ("infllm_v2", "fp16", 64, 7, 40),
]


def prompt_step(
    selector: str, kv_dtype: str, dim: int, group: int, rows: int, *, seed: int, **options: Any
) -> KernelStep:
    """Three slots: far into a prompt, at its start, and one of padding."""
    op = make_kernel_op(
        selector=selector,
        kv_dtype=kv_dtype,
        head_dim=dim,
        group=group,
        num_kv_heads=1,
        budget_tokens=64 * 6,
        **options,
    )
    lengths = [600 + rows, max(rows - 3, 1), 0]
    step = random_step(op, lengths, rows=rows, seed=seed, row_count=[rows, lengths[1], 0])
    return replace(step, prefill=True)


@pytest.mark.parametrize(("selector", "kv_dtype", "dim", "group", "rows"), CASES)
def test_a_chunk_of_a_prompt_is_that_of_the_oracle(
    selector: str, kv_dtype: str, dim: int, group: int, rows: int
) -> None:
    step = prompt_step(selector, kv_dtype, dim, group, rows, seed=rows)
    check_step(step, run_kernels(step, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("kv_dtype", ["fp16", "int8"])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("group", [1, 2, 4, 6, 9, 16])
def test_any_chunk_of_a_prompt_is_that_of_the_oracle(
    selector: str, kv_dtype: str, dim: int, group: int
) -> None:
    step = prompt_step(selector, kv_dtype, dim, group, 130, seed=dim + group)
    check_step(step, run_kernels(step, seed=group))


@pytest.mark.parametrize("window", [40, 300])
def test_a_sliding_window_hides_tokens_of_a_chunk(window: int) -> None:
    step = prompt_step("all", "fp16", 64, 4, 70, seed=3, sliding_window=window)
    check_step(step, run_kernels(step, seed=2))


@pytest.mark.parametrize("selector", ["all", "mean_std"])
def test_dense_chunks_that_are_asked_for_see_everything(selector: str) -> None:
    step = prompt_step(selector, "int8", 64, 4, 20, seed=4)
    step = replace(step, attend_all=np.ones(3, dtype=np.int64))
    check_step(step, run_kernels(step, seed=2))


@pytest.mark.parametrize(("selector", "kv_dtype"), [("all", "int8"), ("mean_std", "fp16")])
def test_a_row_does_not_depend_on_its_chunk_nor_on_the_schedule(
    selector: str, kv_dtype: str
) -> None:
    op = make_kernel_op(
        selector=selector, kv_dtype=kv_dtype, group=4, num_kv_heads=1, budget_tokens=320
    )
    step = replace(random_step(op, [620], rows=120, seed=5), prefill=True)
    whole = run_kernels(step, seed=1)
    for seed in range(2, 6):
        np.testing.assert_array_equal(bits(run_kernels(step, seed=seed).y), bits(whole.y))
    states, begin = step.states, 0
    for size in (1, 50, 13, 56):
        part = slice(begin, begin + size)
        piece = replace(
            step,
            q=step.q[:, part].copy(),
            k=step.k[:, part].copy(),
            v=step.v[:, part].copy(),
            states=states,
            past_len=step.past_len + begin,
            row_count=np.array([size]),
        )
        result = run_kernels(piece, seed=size)
        np.testing.assert_array_equal(bits(result.y), bits(whole.y[:, part]))
        states, begin = result.states, begin + size
    assert begin == 120
    for name, array in whole.states.items():
        np.testing.assert_array_equal(bits(states[name]), bits(array), err_msg=name)


def test_keys_of_four_tiles_are_read_once() -> None:
    op = make_kernel_op(selector="all", group=4, num_kv_heads=1)
    step = replace(random_step(op, [640], rows=32, seed=6), prefill=True)
    traffic = run_kernels(step).traffic["prefill"]
    # 32 rows are 8 tiles, two CTAs: rows up to token 623, and up to 639.
    assert traffic.read["kv"] == (624 + 640) * 2 * 2 * op.head_dim


def test_nan_behind_a_chunk_is_harmless() -> None:
    step = prompt_step("all", "fp16", 64, 4, 33, seed=7)
    result = run_kernels(step, seed=3)
    assert np.isnan(step.states["k_cache"][0, -1]).all()
    check_attention(step, result)
