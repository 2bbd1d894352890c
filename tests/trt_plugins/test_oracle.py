"""The oracle against dense attention, loops from scratch, poison, and itself row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.attention_cases import (
    SCORING,
    SELECTORS,
    Step,
    covering,
    empty_states,
    filled_step,
    make_op,
    settled,
)
from support.brute_attention import brute_row

from selfdraft.trt_plugins.cached_attention.contract import Selector
from selfdraft.trt_plugins.cached_attention.oracle import cached_attention
from selfdraft.trt_plugins.cached_attention.selection import selected_blocks


@pytest.mark.parametrize("selector", SCORING)
@pytest.mark.parametrize("length", [321, 512, 4096, 8193])
def test_a_budget_one_block_short_is_not_dense(selector: Selector, length: int) -> None:
    op = covering(selector, length, group=2)
    short = replace(op, budget_tokens=op.budget_tokens - 64)
    step = filled_step(op, [length], rows=1, seed=length)
    assert (step.run().y != step.run(short).y).all()


@pytest.mark.parametrize("selector", SELECTORS)
def test_budget_larger_than_the_context_is_dense(selector: Selector) -> None:
    op = make_op(selector=selector, budget_tokens=1 << 20, local_blocks=1 << 14)
    step = filled_step(op, [700, 5], rows=3, seed=20)
    np.testing.assert_array_equal(step.run().y, step.run(replace(op, selector="all")).y)


BRUTE_CASES: list[tuple[dict[str, Any], list[int]]] = [
    ({"selector": "all"}, [200, 3, 64]),
    ({"selector": "all", "sliding_window": 70}, [300]),
    ({"selector": "all", "sliding_window": 70, "sinks": 0}, [300]),
    ({"selector": "window", "sinks": 2}, [500, 129]),
    ({"selector": "window", "sinks": 0, "local_blocks": 3}, [500]),
    ({"selector": "mean_std", "budget_tokens": 256}, [650, 64, 0, 450]),
    ({"selector": "mean_std", "budget_tokens": 256, "spread": 0.5, "sinks": 0}, [520]),
    ({"selector": "mean_std", "budget_tokens": 256, "sliding_window": 400}, [700]),
    ({"selector": "mean_std", "budget_share": 0.7, "budget_tokens": 0}, [640, 200]),
    ({"selector": "min_max", "budget_tokens": 300}, [650, 640, 193]),
    ({"selector": "min_max", "num_heads": 6, "spread": 0.25}, [577]),
    ({"selector": "infllm_v2", "budget_tokens": 320}, [655, 97, 449]),
    ({"selector": "infllm_v2", "num_heads": 14, "budget_tokens": 384, "sinks": 0}, [640]),
    ({"selector": "mean_std", "kv_dtype": "int8", "budget_tokens": 256}, [600, 130]),
    ({"selector": "infllm_v2", "kv_dtype": "int8", "budget_tokens": 320}, [600]),
    ({"selector": "min_max", "kv_dtype": "fp16", "budget_tokens": 256}, [600]),
]


@pytest.mark.parametrize(("changes", "lengths"), BRUTE_CASES)
def test_oracle_equals_loops_from_scratch(changes: dict[str, Any], lengths: list[int]) -> None:
    op = make_op(**changes)
    step = filled_step(op, lengths, rows=3, seed=sum(lengths))
    result = step.run()
    for slot, length in enumerate(lengths):
        keys, values = step.context(result, slot)
        rows = int(step.row_count[slot])
        assert int(step.past_len[slot]) + rows == length
        for row in range(rows):
            expected = brute_row(op, step.q[slot, row], keys, values, position=length - rows + row)
            np.testing.assert_allclose(result.y[slot, row], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "int8"])
def test_what_a_row_does_not_see_cannot_reach_it_even_as_nan(
    selector: Selector, kv_dtype: str
) -> None:
    op = make_op(selector=selector, kv_dtype=kv_dtype, budget_tokens=384)
    step = filled_step(op, [900, 460, 70], rows=4, seed=30)
    clean = step.run()
    assert np.isfinite(clean.y).all()
    seen = selected_blocks(
        op,
        step.q,
        clean.states.get("summary"),
        past_len=step.past_len,
        row_count=step.row_count,
        attend_all=step.attend_all,
    )
    used = seen.any(axis=2)  # [B, Hkv, blocks]
    assert selector == "all" or not used.all()
    poison(step, ~used)
    again = step.run()
    np.testing.assert_array_equal(again.y, clean.y)


def poison(step: Step, blocks: Any) -> None:
    """NaN into keys and values of ``blocks [B, Hkv, blocks]``; summaries stay as they were."""
    for slot, head, block in np.argwhere(blocks).tolist():
        tokens = slice(64 * block, 64 * block + 64)
        for name in ("k", "v"):
            kind = "scale" if step.op.kv_dtype == "int8" else "cache"
            step.states[f"{name}_{kind}"][slot, head, tokens] = np.nan


@pytest.mark.parametrize("selector", SELECTORS)
def test_a_later_row_cannot_reach_an_earlier_one_even_as_nan(selector: Selector) -> None:
    op = make_op(selector=selector)
    step = filled_step(op, [700], rows=4, seed=31)
    clean = step.run().y
    k, v, q = step.k.copy(), step.v.copy(), step.q.copy()
    k[0, 2:], v[0, 2:], q[0, 2:] = np.nan, np.nan, np.nan
    np.testing.assert_array_equal(replace(step, k=k, v=v, q=q).run().y[0, :2], clean[0, :2])


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("kv_dtype", ["fp32", "int8"])
def test_padded_rows_give_zeros_and_write_nothing(selector: Selector, kv_dtype: str) -> None:
    op = make_op(selector=selector, kv_dtype=kv_dtype)
    step = filled_step(op, [600, 300, 600], rows=5, seed=32, row_count=[2, 0, 5])
    for array in (step.q, step.k, step.v):
        array[0, 2:], array[1] = np.nan, np.nan
    result = step.run()
    assert not result.y[0, 2:].any() and not result.y[1].any()
    assert np.isfinite(result.y).all()
    for name, before in step.states.items():
        np.testing.assert_array_equal(result.states[name][1], before[1])
        if name != "summary":
            np.testing.assert_array_equal(result.states[name][0, :, 600:], before[0, :, 600:])
    assert list(result.states) == list(step.states)


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("kv_dtype", ["fp32", "int8"])
def test_rows_together_are_bit_for_bit_what_they_are_alone(
    selector: Selector, kv_dtype: str
) -> None:
    op = make_op(selector=selector, kv_dtype=kv_dtype, budget_tokens=384)
    step = filled_step(op, [650, 515, 80], rows=8, seed=33)
    together = step.run()
    states = {name: array.copy() for name, array in step.states.items()}
    for row in range(8):
        one = slice(row, row + 1)
        alone = cached_attention(
            op,
            step.q[:, one],
            step.k[:, one],
            step.v[:, one],
            **states,
            past_len=step.past_len + row,
            row_count=np.ones(3, dtype=np.int64),
            attend_all=step.attend_all,
        )
        np.testing.assert_array_equal(alone.y[:, 0], together.y[:, row])


@pytest.mark.parametrize("selector", SELECTORS)
def test_chunks_of_a_prompt_leave_the_states_of_one_prefill(selector: Selector) -> None:
    op = make_op(selector=selector)
    step = filled_step(op, [301], rows=301, seed=34)
    states = empty_states(op, batch=1, capacity=320)
    whole = replace(step, states=states, attend_all=np.ones(1, dtype=np.int64)).run()
    begin = 0
    for size in (1, 62, 1, 1, 127, 109):
        part = slice(begin, begin + size)
        piece = cached_attention(
            op,
            step.q[:, part],
            step.k[:, part],
            step.v[:, part],
            **states,
            past_len=np.array([begin]),
            row_count=np.array([size]),
            attend_all=np.ones(1, dtype=np.int64),
        )
        np.testing.assert_array_equal(piece.y, whole.y[:, part])
        begin += size
    assert begin == 301
    for name in ("k_cache", "v_cache"):
        np.testing.assert_array_equal(states[name], whole.states[name])
    if op.summary_vectors:
        fixed = settled(op, length=301, blocks=5)
        assert fixed.any() and not fixed.all()
        np.testing.assert_array_equal(
            states["summary"][:, :, fixed], whole.states["summary"][:, :, fixed]
        )


def test_states_that_the_op_does_not_have_are_refused() -> None:
    step = filled_step(make_op(selector="mean_std"), [100], rows=1, seed=35)
    states = dict(step.states)
    del states["summary"]
    with pytest.raises(ValueError, match="the op has k_cache, v_cache, summary"):
        replace(step, states=states).run()
    with pytest.raises(ValueError, match="the op has k_cache, v_cache$"):
        cached_attention(
            make_op(selector="all"),
            step.q,
            step.k,
            step.v,
            **step.states,
            past_len=step.past_len,
            row_count=step.row_count,
            attend_all=step.attend_all,
        )


def test_summaries_wider_than_single_precision_are_refused() -> None:
    step = filled_step(make_op(selector="mean_std"), [100], rows=1, seed=36)
    states = {**step.states, "summary": step.states["summary"].astype(np.float64)}
    with pytest.raises(ValueError, match="summary is float64"):
        replace(step, states=states).run()


def test_a_step_that_passes_the_scratch_slot_is_refused() -> None:
    step = filled_step(make_op(selector="all"), [126], rows=1, seed=37)
    with pytest.raises(ValueError, match="last usable cache slot of 128"):
        replace(step, past_len=np.array([127])).run()
