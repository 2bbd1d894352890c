"""The ONNX function body against the NumPy oracle: outputs, states, poison, replays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.numerics import FP16_STEP, FP64_AGAINST_FP32, assert_close
from support.onnx_op import OnnxOp

from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.cached_attention.oracle import cached_attention
from selfdraft.trt_plugins.cached_attention.states import empty_states

CAPACITY = 1536
HEAD_DIM = 16
SELECTORS = ("all", "window", "mean_std", "min_max", "infllm_v2")


def _op(**changes: Any) -> CachedAttention:
    fields: dict[str, Any] = {
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": HEAD_DIM,
        "scale": 0.25,
        "sinks": 1,
        "local_blocks": 3,
        "budget_tokens": 448,
        "selector": "mean_std",
    }
    fields.update(changes)
    return CachedAttention(**fields)


class _Pair:
    """The body and the oracle over states of their own, fed with the same rows."""

    def __init__(self, op: CachedAttention, *, batch: int, seed: int = 0) -> None:
        self.op, self.batch = op, batch
        self.body = OnnxOp(op)
        self.states = empty_states(op, batch=batch, capacity=CAPACITY)
        self.expected = empty_states(op, batch=batch, capacity=CAPACITY)
        self.past = np.zeros(batch, np.int64)
        self._rng = np.random.default_rng(seed)
        # Keys that drift and stand out, so that blocks differ clearly.
        self._drift = self._rng.standard_normal((batch, op.num_kv_heads, op.head_dim))

    def rows(self, num_rows: int) -> list[NDArray[np.float32]]:
        heads = (self.op.num_heads, self.op.num_kv_heads, self.op.num_kv_heads)
        shape = (self.batch, num_rows)
        q, k, v = (self._rng.standard_normal((*shape, h, HEAD_DIM)) * 1.5 for h in heads)
        self._drift += 0.7 * self._rng.standard_normal(self._drift.shape)
        k += self._drift[:, None]
        return [x.reshape(*shape, -1).astype(np.float32) for x in (q, k, v)]

    def step(self, num_rows: int, counts: list[int], *, attend_all: int = 0) -> None:
        """Run both over the same rows and compare what the contract defines."""
        q, k, v = self.rows(num_rows)
        lengths = {
            "past_len": self.past,
            "row_count": np.array(counts),
            "attend_all": np.full(self.batch, attend_all),
        }
        y = self.body(q, k, v, self.states, **lengths)
        attended = cached_attention(self.op, q, k, v, **self.expected, **lengths)
        wanted = attended.y
        assert self.body.blocks_read == attended.blocks_read
        assert np.isfinite(y).all()
        for slot, count in enumerate(counts):
            if count:
                assert_close(
                    y[slot, :count],
                    wanted[slot, :count],
                    relative=FP64_AGAINST_FP32,
                    name=f"y[{slot}] past {self.past[slot]}",
                )
        self.past = self.past + counts
        self._compare_states()

    def _compare_states(self) -> None:
        for slot, end in enumerate(self.past.tolist()):
            for name, array in self.states.items():
                # A summary counts once its block, and the windows that reach on, are complete.
                complete = end // self.op.block - (self.op.selector == "infllm_v2")
                stop = max(complete, 0) if name == "summary" else end
                got, expected = array[slot, :, :stop], self.expected[name][slot, :, :stop]
                if stop and name != "summary":
                    assert np.array_equal(got, expected), name
                elif stop:
                    assert_close(got, expected, relative=FP16_STEP, name=name)


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("kv_dtype", ["fp32", "int8"])
def test_body_computes_what_the_oracle_computes(selector: str, kv_dtype: str) -> None:
    pair = _Pair(_op(selector=selector, kv_dtype=kv_dtype), batch=3)
    pair.step(200, [200, 120, 63], attend_all=1)
    pair.step(200, [200, 200, 1], attend_all=1)
    pair.step(190, [190, 7, 190], attend_all=1)
    for counts in ([1, 1, 1], [3, 2, 0], [5, 1, 5], [1, 0, 1]):
        pair.step(max(counts), counts)
    pair.step(130, [130, 64, 65])


@pytest.mark.parametrize("heads", [(1, 1), (3, 1), (5, 1), (6, 2), (7, 1), (8, 1), (16, 1)])
def test_body_takes_any_group_size(heads: tuple[int, int]) -> None:
    pair = _Pair(_op(num_heads=heads[0], num_kv_heads=heads[1]), batch=1)
    pair.step(700, [700], attend_all=1)
    pair.step(2, [2])


@pytest.mark.parametrize(
    "changes",
    [
        {"budget_share": 0.4},
        {"budget_tokens": 0, "budget_share": 0.7},
        {"budget_tokens": 64},
        {"sinks": 0},
        {"sinks": 9, "local_blocks": 8},
        {"sliding_window": 150},
        {"selector": "window", "sliding_window": 100},
        {"selector": "all", "sliding_window": 100},
        {"spread": 0.5},
    ],
    ids=str,
)
def test_body_follows_every_attribute(changes: dict[str, Any]) -> None:
    pair = _Pair(_op(**changes), batch=2)
    pair.step(640, [640, 300], attend_all=1)
    pair.step(300, [300, 300])
    pair.step(4, [4, 1])
    pair.step(1, [1, 1])


@pytest.mark.parametrize("selector", ["mean_std", "min_max", "infllm_v2"])
def test_random_rejections_leave_the_state_of_the_oracle(selector: str) -> None:
    rng = np.random.default_rng(5)
    pair = _Pair(_op(selector=selector, budget_tokens=320), batch=1)
    pair.step(430, [430], attend_all=1)
    for _ in range(60):
        rows = int(rng.integers(1, 10))
        pair.step(rows, [rows])
        pair.past = pair.past - rng.integers(0, rows)


def test_unselected_blocks_are_never_read() -> None:
    pair = _Pair(_op(budget_tokens=256), batch=1)
    pair.step(900, [900], attend_all=1)
    q, k, v = pair.rows(2)
    lengths = {
        "past_len": pair.past,
        "row_count": np.array([2]),
        "attend_all": np.array([0]),
    }
    clean = {name: array.copy() for name, array in pair.states.items()}
    y = pair.body(q, k, v, clean, **lengths)
    poisoned = {name: array.copy() for name, array in pair.states.items()}
    # Sinks 1 and window 3 fill the budget of 4 blocks: blocks 1 to 11 are not chosen.
    poisoned["k_cache"][:, :, 64 : 64 * 11] = np.nan
    poisoned["v_cache"][:, :, 64 : 64 * 11] = np.nan
    assert np.array_equal(pair.body(q, k, v, poisoned, **lengths), y)


def test_budget_that_covers_the_context_gives_dense_attention() -> None:
    sparse = _Pair(_op(budget_tokens=1024), batch=1)
    dense = OnnxOp(_op(selector="all"))
    states = empty_states(dense.op, batch=1, capacity=CAPACITY)
    for rows in (1000, 3, 1):
        q, k, v = sparse.rows(rows)
        lengths = {
            "past_len": sparse.past,
            "row_count": np.array([rows]),
            "attend_all": np.array([0]),
        }
        y = sparse.body(q, k, v, sparse.states, **lengths)
        wanted = dense(q, k, v, states, **lengths)
        assert_close(y, wanted, relative=FP64_AGAINST_FP32, name=f"{rows} rows")
        sparse.past = sparse.past + rows
