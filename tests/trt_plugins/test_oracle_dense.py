"""The NumPy oracle of CachedAttention against attention written out token by token."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from selfdraft.errors import ConfigError
from selfdraft.trt_plugins.cached_attention.contract import INPUTS, CachedAttention
from selfdraft.trt_plugins.cached_attention.oracle import cached_attention, visible

SLOTS = 64
CASES = [
    pytest.param([7], [3], id="one slot"),
    pytest.param([0], [1], id="first token"),
    pytest.param([0, 62, 5], [5, 1, 0], id="three slots, one idle"),
    pytest.param([10, 0, 3, 58], [2, 5, 0, 5], id="four slots up to the last usable one"),
]


def _op(**changes: Any) -> CachedAttention:
    values: dict[str, Any] = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 4, "scale": 0.4}
    return CachedAttention(**values | changes)


def _inputs(op: CachedAttention, past: list[int], rows: list[int], seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    batch, num_rows = len(past), max(max(rows), 1) + 1  # at least one padded row
    kv = op.num_kv_heads * op.head_dim
    cache = (batch, op.num_kv_heads, SLOTS, op.head_dim)
    return {
        "q": rng.standard_normal((batch, num_rows, op.num_heads * op.head_dim)),
        "k": rng.standard_normal((batch, num_rows, kv)),
        "v": rng.standard_normal((batch, num_rows, kv)),
        "k_cache": rng.standard_normal(cache),
        "v_cache": rng.standard_normal(cache),
        "past_len": np.array(past),
        "row_count": np.array(rows),
        "attend_all": np.arange(batch) % 2,
    }


def _call(op: CachedAttention, inputs: dict[str, Any]) -> tuple[Any, Any, Any]:
    given = dict(inputs)
    return cached_attention(op, given.pop("q"), given.pop("k"), given.pop("v"), **given)


def _written_out(op: CachedAttention, inputs: dict[str, Any], slot: int, row: int) -> list[float]:
    """One output row in Python floats, from the untouched caches and the new rows."""
    past, d = int(inputs["past_len"][slot]), op.head_dim
    position = past + row
    first = max(0, position - op.sliding_window + 1) if op.sliding_window else 0
    out: list[float] = []
    for head in range(op.num_heads):
        kv = head // op.group
        query = inputs["q"][slot, row, head * d : (head + 1) * d]

        def entry(name: str, token: int, kv: int = kv) -> Any:
            if token < past:
                return inputs[f"{name}_cache"][slot, kv, token]
            return inputs[name][slot, token - past, kv * d : (kv + 1) * d]

        tokens = range(first, position + 1)
        scores = [
            sum(float(a * b) for a, b in zip(query, entry("k", t), strict=True)) * op.scale
            for t in tokens
        ]
        weights = [math.exp(score - max(scores)) for score in scores]
        for i in range(d):
            mixed = sum(w * entry("v", t)[i] for w, t in zip(weights, tokens, strict=True))
            out.append(mixed / sum(weights))
    return out


@pytest.mark.parametrize("window", [0, 1, 3, 64])
@pytest.mark.parametrize(("past", "rows"), CASES)
def test_rows_attend_to_their_slot_up_to_themselves(
    past: list[int], rows: list[int], window: int
) -> None:
    op = _op(sliding_window=window)
    inputs = _inputs(op, past, rows)
    before = {name: inputs[name].copy() for name in ("k_cache", "v_cache")}
    y, _, _ = _call(op, inputs)
    for slot, count in enumerate(rows):
        for row in range(count):
            expected = _written_out(op, inputs | before, slot, row)
            np.testing.assert_allclose(y[slot, row], expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("past", "rows"), CASES)
def test_only_real_rows_are_written_and_in_place(past: list[int], rows: list[int]) -> None:
    op = _op()
    inputs = _inputs(op, past, rows)
    before = {name: inputs[name].copy() for name in ("k_cache", "v_cache")}
    _, k_cache, v_cache = _call(op, inputs)
    assert k_cache is inputs["k_cache"] and v_cache is inputs["v_cache"]
    for name in ("k", "v"):
        expected = before[f"{name}_cache"]
        for slot, count in enumerate(rows):
            for row in range(count):
                heads = inputs[name][slot, row].reshape(op.num_kv_heads, op.head_dim)
                expected[slot, :, past[slot] + row] = heads
        np.testing.assert_array_equal(inputs[f"{name}_cache"], expected)


def test_rows_alone_equal_rows_together() -> None:
    op = _op()
    together = _inputs(op, [9, 30], [4, 4])
    alone = {name: array.copy() for name, array in together.items()}
    y, _, _ = _call(op, together)
    for row in range(4):
        step = alone | {name: alone[name][:, row : row + 1] for name in ("q", "k", "v")}
        step |= {"past_len": np.array([9, 30]) + row, "row_count": np.array([1, 1])}
        single, _, _ = _call(op, step)
        np.testing.assert_allclose(single[:, 0], y[:, row], rtol=1e-13, atol=1e-14)
    np.testing.assert_array_equal(alone["k_cache"], together["k_cache"])


def test_nothing_beyond_the_length_is_read() -> None:
    op = _op()
    inputs = _inputs(op, [5, 0], [2, 3])
    for name in ("k_cache", "v_cache"):
        for slot, past in enumerate((5, 0)):
            inputs[name][slot, :, past:] = np.nan
    y, _, _ = _call(op, inputs)
    assert np.isfinite(y).all()


def test_padded_rows_are_zero_whatever_they_hold() -> None:
    op = _op()
    inputs = _inputs(op, [5, 8], [1, 0])
    for name in ("q", "k", "v"):
        inputs[name][0, 1:] = np.nan
        inputs[name][1] = np.nan
    y, _, _ = _call(op, inputs)
    assert not y[0, 1:].any() and not y[1].any() and np.isfinite(y).all()


def test_window_of_three_sees_three_tokens() -> None:
    seen = visible(past_len=4, num_rows=2, num_slots=6, sliding_window=3)
    assert seen.astype(int).tolist() == [[0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1]]


def test_scratch_slot_is_no_place_for_a_real_row() -> None:
    op = _op()
    with pytest.raises(ValueError, match="passes the last usable cache slot of 64"):
        _call(op, _inputs(op, [SLOTS - 2], [2]))


def test_wrong_shapes_are_named() -> None:
    op = _op()
    inputs = _inputs(op, [5], [1])
    inputs["v"] = inputs["v"][..., :-1]
    with pytest.raises(ValueError, match=r"v has shape \(1, 2, 7\), expected \(1, 2, 8\)"):
        _call(op, inputs)


@pytest.mark.parametrize("selector", ["mean_std", "min_max", "infllm_v2"])
def test_selectors_of_later_versions_are_refused_by_name(selector: str) -> None:
    with pytest.raises(ConfigError, match=f"'{selector}' is not implemented in this version"):
        _op(selector=selector)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_heads": 5},
        {"head_dim": 0},
        {"scale": float("nan")},
        {"block": 32},
        {"local_blocks": 1},
        {"sinks": -1},
        {"sliding_window": -1},
        {"kv_dtype": "bf16"},
        {"selector": "quest"},
    ],
    ids=lambda c: next(iter(c)),
)
def test_attributes_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        _op(**changes)


def test_inputs_follow_the_contract_order() -> None:
    assert _op().inputs == (*INPUTS[:5], *INPUTS[8:])
    assert _op(kv_dtype="int8").inputs == (*INPUTS[:7], *INPUTS[8:])
    assert _op().outputs == ("y", "k_cache_out", "v_cache_out")
