"""int8 keys and values: codes, scales, and how far they move the output."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from support.attention_cases import SELECTORS, Step, filled_step, make_op

from selfdraft.trt_plugins.cached_attention.contract import Selector
from selfdraft.trt_plugins.cached_attention.int8_kv import dequantise, quantise
from selfdraft.trt_plugins.cached_attention.oracle import Attended, cached_attention
from selfdraft.trt_plugins.cached_attention.selection import selected_blocks


@pytest.mark.parametrize("size", [1e-2, 1.0, 300.0, 1e6])
def test_a_value_is_off_by_at_most_half_its_scale(size: float) -> None:
    x = np.random.default_rng(1).normal(size=(500, 64)) * size
    codes, scale = quantise(x)
    error = np.abs(dequantise(codes, scale) - x.astype(np.float32))
    assert codes.dtype == np.int8 and scale.dtype == np.float16
    assert np.abs(codes.astype(int)).max() == 127
    assert (error <= scale.astype(np.float64)[:, None] / 2 * (1 + 1e-6)).all()


@pytest.mark.parametrize("size", [1e-3, 1e-5, 1e-7, 1e-9])
def test_values_too_small_for_the_scale_are_off_by_a_stated_bound(size: float) -> None:
    x = np.random.default_rng(2).normal(size=(500, 64)) * size
    codes, scale = quantise(x)
    assert (scale > 0).all()
    bound = np.maximum(scale.astype(np.float64)[:, None] / 2, 127 / 2**25)
    assert (np.abs(dequantise(codes, scale) - x) <= bound).all()


def test_zeros_have_scale_one_and_codes_zero() -> None:
    codes, scale = quantise(np.zeros((3, 8)))
    assert (scale == 1).all() and not codes.any()


def test_halves_round_to_even() -> None:
    codes, scale = quantise(np.array([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]]))
    assert scale[0] == 1
    assert codes.tolist() == [[127, 0, 2, 2, 0, -2]]


def test_values_beyond_the_largest_scale_are_cut_and_nan_stays_nan() -> None:
    x = np.array([[np.inf, 1.0], [-np.inf, 1.0], [1e9, -1e9], [np.nan, 1.0]])
    codes, scale = quantise(x)
    back = dequantise(codes, scale)
    assert np.isfinite(back[:3]).all()
    assert back[0, 0] == -back[1, 0] == back[2, 0] == 127 * 65504.0
    assert np.isnan(back[3]).all()


@pytest.mark.parametrize("selector", SELECTORS)
def test_int8_output_stays_within_the_bound_of_its_scales(selector: Selector) -> None:
    """The same blocks seen: |Δy| ≤ (e^2ε - 1) max|v| + half the largest value scale.

    ε = scale · ‖q‖₁ · half the largest key scale bounds how far a logit moves; a softmax weight
    then moves by a factor between e^-2ε and e^2ε.
    """
    op = make_op(selector=selector, head_dim=16, scale=0.25, kv_dtype="int8")
    step = filled_step(op, [700, 300], rows=4, seed=3, attend_all=[1, 1])
    result = step.run()
    exact_op = replace(op, kv_dtype="fp32")
    exact = filled_step(exact_op, [700, 300], rows=4, seed=3, attend_all=[1, 1]).run()
    for slot, past in enumerate(step.past_len.tolist()):
        tokens = slice(past + 4)
        k_half = float(result.states["k_scale"][slot, :, tokens].max()) / 2
        v_half = float(result.states["v_scale"][slot, :, tokens].max()) / 2
        v_most = float(np.abs(exact.states["v_cache"][slot, :, tokens]).max())
        q_norm = np.abs(step.q[slot]).reshape(4, op.num_heads, 16).sum(axis=-1).max()
        epsilon = op.scale * q_norm * k_half
        bound = np.expm1(2 * epsilon) * v_most + v_half
        error = np.abs(result.y[slot] - exact.y[slot]).max()
        assert 0 < error <= bound


@pytest.mark.parametrize(
    ("selector", "norm", "shared"),
    [
        ("all", 0.03, 1.0),
        ("window", 0.03, 1.0),
        ("mean_std", 0.12, 0.96),
        ("min_max", 0.12, 0.96),
        ("infllm_v2", 0.12, 0.96),
    ],
)
def test_int8_output_and_selection_stay_close_to_those_of_exact_caches(
    selector: Selector, norm: float, shared: float
) -> None:
    """4,096 unrelated keys (d 64, logits of size 2), a quarter read: relative L2, blocks in common.

    Unrelated keys are the hardest: many blocks score nearly alike, and one that changes places
    moves the output more than the codes themselves do.
    """
    op = make_op(
        selector=selector,
        num_heads=8,
        head_dim=64,
        scale=0.125,
        budget_tokens=1024,
        kv_dtype="int8",
    )
    both = [
        filled_step(replace(op, kv_dtype=kv_dtype), [4096], rows=4, seed=6)
        for kv_dtype in ("int8", "fp32")
    ]
    int8, exact = (step.run() for step in both)
    assert np.linalg.norm(int8.y - exact.y) <= norm * np.linalg.norm(exact.y)
    seen = [blocks_seen(step, result) for step, result in zip(both, (int8, exact), strict=True)]
    assert (seen[0] & seen[1]).sum() >= shared * seen[1].sum()


def blocks_seen(step: Step, result: Attended) -> NDArray[np.bool_]:
    return selected_blocks(
        step.op,
        step.q,
        result.states.get("summary"),
        past_len=step.past_len,
        row_count=step.row_count,
        attend_all=step.attend_all,
    )


def test_summaries_come_from_the_codes_and_not_from_the_keys_given() -> None:
    op = make_op(selector="mean_std", kv_dtype="int8")
    step = filled_step(op, [128], rows=1, seed=4)
    result = step.run()
    keys = step.context(result, 0)[0][64:128, 0]  # [64, d]
    centre, spread = result.states["summary"][0, 0, 1]
    np.testing.assert_array_equal(centre, keys.mean(axis=0).astype(np.float16))
    np.testing.assert_array_equal(spread, keys.std(axis=0).astype(np.float16))


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16"])
def test_scales_are_refused_where_the_cache_is_not_int8(kv_dtype: str) -> None:
    int8 = filled_step(make_op(kv_dtype="int8"), [100], rows=1, seed=5)
    other = filled_step(make_op(kv_dtype=kv_dtype), [100], rows=1, seed=5)
    scales = {name: int8.states[name] for name in ("k_scale", "v_scale")}
    with pytest.raises(ValueError, match="states given are k_cache, v_cache, k_scale, v_scale"):
        cached_attention(
            other.op,
            other.q,
            other.k,
            other.v,
            **other.states,
            **scales,
            past_len=other.past_len,
            row_count=other.row_count,
            attend_all=other.attend_all,
        )
    with pytest.raises(ValueError, match="k_cache is int8"):
        replace(other, states={n: int8.states[n] for n in ("k_cache", "v_cache")}).run()
