"""Where scores say nothing: the ONNX body chooses what the oracle chooses, and reads nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from support.attention_cases import SCORING, Step, filled_step, make_op, with_keys
from support.body_step import run_body, zeroed

from selfdraft.trt_plugins.cached_attention.contract import Selector
from selfdraft.trt_plugins.cached_attention.selection import selected_blocks

TOLERANCE = 1e-5


def check(step: Step) -> NDArray[np.float32]:
    """The body's output, equal to the oracle's; values are random, so another block would show."""
    y, expected = run_body(step), step.run().y
    assert np.isfinite(y).all()
    np.testing.assert_allclose(y, expected, rtol=0, atol=TOLERANCE)
    return y


@pytest.mark.parametrize("selector", SCORING)
@pytest.mark.parametrize("value", [0.0, 0.75])
def test_equal_scores_are_taken_in_block_order(selector: Selector, value: float) -> None:
    op = make_op(selector=selector, budget_tokens=384)
    step = with_keys(zeroed(filled_step(op, [900], rows=2, seed=1)), np.full(900, value))
    y = check(step)
    # Other blocks would give another output: the values differ.
    more = replace(op, budget_tokens=448)
    assert np.abs(run_body(step, more) - y).max() > 1e-3


@pytest.mark.parametrize("selector", SCORING)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_keys_that_are_not_finite_give_the_selection_of_the_oracle(
    selector: Selector, bad: float
) -> None:
    op = make_op(selector=selector, budget_tokens=384)
    keys = np.random.default_rng(6).normal(size=(800, op.head_dim))
    keys[5 * 64 + 40] = bad
    check(with_keys(zeroed(filled_step(op, [800], rows=2, seed=7)), keys))


@pytest.mark.parametrize("selector", SCORING)
def test_sinks_and_window_beyond_the_budget_leave_the_window_selector(selector: Selector) -> None:
    op = make_op(selector=selector, budget_tokens=64, sinks=3, local_blocks=4)
    step = zeroed(filled_step(op, [1500, 700], rows=3, seed=8))
    y = check(step)
    np.testing.assert_array_equal(y, run_body(step, replace(op, selector="window")))


@pytest.mark.parametrize("selector", SCORING)
def test_budget_larger_than_any_context_is_dense(selector: Selector) -> None:
    op = make_op(selector=selector, budget_tokens=1 << 20, local_blocks=1 << 14)
    step = zeroed(filled_step(op, [700, 5], rows=3, seed=20))
    y = check(step)
    dense = run_body(step, replace(op, selector="all"))
    np.testing.assert_allclose(y, dense, rtol=0, atol=1e-5)


@pytest.mark.parametrize("selector", SCORING)
@pytest.mark.parametrize("kv_dtype", ["fp32", "int8"])
def test_blocks_that_no_row_chose_are_not_read_even_as_nan(
    selector: Selector, kv_dtype: str
) -> None:
    op = make_op(selector=selector, kv_dtype=kv_dtype, budget_tokens=384)
    step = zeroed(filled_step(op, [900], rows=4, seed=30))
    clean = check(step)
    seen = selected_blocks(
        op,
        step.q,
        step.run().states["summary"],
        past_len=step.past_len,
        row_count=step.row_count,
        attend_all=step.attend_all,
    )
    used = seen.any(axis=2)  # [B, Hkv, blocks]
    chosen = used[..., op.sinks : -op.local_blocks]
    assert chosen.any() and not chosen.all()
    states = {name: array.copy() for name, array in step.states.items()}
    for slot, head, block in np.argwhere(~used).tolist():
        for name in ("k", "v"):
            array = states[f"{name}_scale" if kv_dtype == "int8" else f"{name}_cache"]
            array[slot, head, 64 * block : 64 * block + 64] = np.nan
    np.testing.assert_array_equal(run_body(replace(step, states=states)), clean)
