"""Rows of a step get bit for bit what they get alone, in every branch of the ONNX body.

Speculation relies on it: int4 matrix products behind the op amplify a difference in the last bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.numerics import FP64_AGAINST_FP32, assert_close
from support.onnx_op import OnnxOp

from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.cached_attention.oracle import cached_attention
from selfdraft.trt_plugins.cached_attention.states import empty_states

KV_HEADS = 2
CAPACITY = 2048


def _op(*, group: int = 3, head_dim: int = 64, **changes: Any) -> CachedAttention:
    fields: dict[str, Any] = {
        "num_heads": KV_HEADS * group,
        "num_kv_heads": KV_HEADS,
        "head_dim": head_dim,
        "scale": head_dim**-0.5,
        "local_blocks": 3,
        "budget_tokens": 448,
        "selector": "mean_std",
    }
    return CachedAttention(**fields | changes)


class _Decoder:
    """One set of states, filled densely with rows that drift, then decoded."""

    def __init__(
        self, op: CachedAttention, *, batch: int, length: int, capacity: int = CAPACITY
    ) -> None:
        self.op, self.batch = op, batch
        self.body = OnnxOp(op)
        self.states = empty_states(op, batch=batch, capacity=capacity)
        self._random = np.random.default_rng(0)
        self._drift = np.zeros((batch, 1, op.num_kv_heads, op.head_dim))
        for past in range(0, length, 64):
            rows = min(64, length - past)
            self.run(self.body, self.rows(rows), np.full(batch, past), self.states, attend_all=1)
        self.past = length - 5 * np.arange(batch)

    def rows(self, count: int) -> list[NDArray[np.float32]]:
        self._drift = self._drift + 0.5 * self._random.standard_normal(self._drift.shape)
        parts = []
        for name, heads in (("q", self.op.num_heads), ("k", self.op.num_kv_heads), ("v", 0)):
            shape = (self.batch, count, heads or self.op.num_kv_heads, self.op.head_dim)
            drawn = self._random.standard_normal(shape) + (self._drift if name == "k" else 0)
            parts.append(drawn.reshape(self.batch, count, -1).astype(np.float32))
        return parts

    def run(
        self,
        body: OnnxOp,
        rows: list[NDArray[np.float32]],
        past: NDArray[Any],
        states: dict[str, NDArray[Any]],
        *,
        attend_all: int = 0,
    ) -> NDArray[np.float32]:
        return body(
            *rows,
            states,
            past_len=past,
            row_count=np.full(self.batch, rows[0].shape[1]),
            attend_all=np.full(self.batch, attend_all),
        )

    def unlike(self, count: int, *, attend_all: int = 0) -> int:
        """Of ``count`` rows run together and one by one, how many differ in any bit."""
        rows = self.rows(count)
        alone = {name: array.copy() for name, array in self.states.items()}
        y = self.run(self.body, rows, self.past, self.states, attend_all=attend_all)
        differing = 0
        for row in range(count):
            part = [x[:, row : row + 1] for x in rows]
            single = self.run(self.body, part, self.past + row, alone, attend_all=attend_all)
            differing += not np.array_equal(y[:, row : row + 1], single)
        self.past = self.past + count
        return differing


@pytest.mark.parametrize("group", [1, 2, 3, 8])
@pytest.mark.parametrize("selector", ["all", "window", "mean_std", "min_max", "infllm_v2"])
def test_rows_together_are_the_rows_alone_bit_for_bit(selector: str, group: int) -> None:
    decoder = _Decoder(_op(selector=selector, group=group), batch=1, length=900)
    assert [decoder.unlike(count) for count in (5, 2, 9)] == [0, 0, 0]


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_dtype": "int8"},
        {"budget_share": 0.3},
        {"budget_share": 0.3, "group": 1, "sliding_window": 150},
        {"sliding_window": 150},
        {"selector": "window", "sliding_window": 100},
        {"local_blocks": 2, "sinks": 0},
        {"sinks": 2, "budget_tokens": 0},
        {"head_dim": 128},
        {"group": 1, "kv_dtype": "int8", "selector": "infllm_v2"},
    ],
    ids=str,
)
def test_rows_together_are_the_rows_alone_with_every_attribute(changes: dict[str, Any]) -> None:
    decoder = _Decoder(_op(**changes), batch=3, length=900)
    assert [decoder.unlike(count) for count in (4, 3)] == [0, 0]


@pytest.mark.parametrize("selector", ["mean_std", "infllm_v2"])
def test_rows_on_both_sides_of_the_budget_are_the_rows_alone(selector: str) -> None:
    """Rows that the budget covers are listed by id, those behind choose by score."""
    decoder = _Decoder(_op(selector=selector), batch=1, length=430)
    assert [decoder.unlike(6) for _ in range(8)] == [0] * 8
    assert decoder.past[0] > 448


@pytest.mark.parametrize("group", [1, 3])
def test_dense_rows_of_a_sparse_op_are_the_rows_alone(group: int) -> None:
    decoder = _Decoder(_op(group=group), batch=2, length=300)
    assert decoder.unlike(4, attend_all=1) == 0


@pytest.mark.parametrize("selector", ["mean_std", "min_max", "infllm_v2"])
def test_scores_over_the_whole_state_choose_what_scores_over_a_copy_choose(selector: str) -> None:
    """A state that is mostly in use is not copied before the product; the result is the same."""
    short, long = (
        _Decoder(_op(selector=selector), batch=1, length=900, capacity=capacity)
        for capacity in (1024, 64 * 1024)
    )
    rows = short.rows(1)
    results = [d.run(d.body, rows, d.past, d.states) for d in (short, long)]
    assert np.array_equal(*results)


@pytest.mark.parametrize("selector", ["all", "mean_std", "infllm_v2"])
@pytest.mark.parametrize("batch", [1, 3])
def test_one_row_kernel_computes_what_the_oracle_computes(selector: str, batch: int) -> None:
    """Within the budget the kernel serves; behind it, and for several rows, the body does."""
    op = _op(selector=selector)
    decoder = _Decoder(op, batch=batch, length=380)
    kernel = OnnxOp(op, one_row_kernel=True)
    expected = {name: array.copy() for name, array in decoder.states.items()}
    for count in (1, 1, 2, 60, 30, 1, 1):
        rows, lengths = decoder.rows(count), np.full(batch, count)
        y = decoder.run(kernel, rows, decoder.past, decoder.states)
        wanted = cached_attention(
            op,
            *rows,
            **expected,
            past_len=decoder.past,
            row_count=lengths,
            attend_all=np.zeros(batch, np.int64),
        )
        assert_close(y, wanted.y, relative=FP64_AGAINST_FP32, name=f"{count} rows")
        assert kernel.blocks_read == wanted.blocks_read
        decoder.past = decoder.past + count
        for name, array in decoder.states.items():
            if name != "summary":
                end = int(decoder.past.min())
                assert np.array_equal(array[:, :, :end], expected[name][:, :, :end]), name
    assert decoder.past.min() > op.budget_tokens
