"""A selection that covers the context is dense attention: the oracle to 1e-12, the ONNX body too.

The body is compared with its own dense form and with the oracle, to 1e-5: a row that lists all of its
blocks adds them up block by block, the dense form does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.attention_cases import SELECTORS, Step, covering, filled_step
from support.body_step import run_body, zeroed

from selfdraft.trt_plugins.cached_attention.contract import Selector

SHORT = (1, 15, 31, 63, 64, 65, 127, 128, 129, 4095, 4096, 4097, 8191, 8192, 8193)
LONG = (131_071, 131_072)
GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 16)
BATCHES = (1, 3, 4)
DIM = 8
ROWS = 3
SPARSE = tuple(selector for selector in SELECTORS if selector != "all")


def covered_step(selector: Selector, length: int, *, group: int, batch: int) -> Step:
    """A step after which the longest of ``batch`` unequal slots holds ``length`` tokens."""
    lengths = [length, max(length // 2, 1), max(length - 64, 1), 1][:batch]
    return filled_step(
        covering(selector, length, group=group, dim=DIM), lengths, rows=ROWS, seed=length + batch
    )


def of_group(step: Step, group: int) -> Step:
    """The same keys and values for fewer query heads: filling 128K slots is what takes time."""
    op = replace(step.op, num_heads=group)
    return replace(step, op=op, q=np.ascontiguousarray(step.q[..., : group * DIM]))


def check_oracle(step: Step) -> None:
    """Equal to the op's own dense form bit for bit, and to a softmax written out once more."""
    result = step.run()
    np.testing.assert_array_equal(result.y, step.run(replace(step.op, selector="all")).y)
    for slot in range(len(step.past_len)):
        keys, values = step.context(result, slot)
        for row in range(int(step.row_count[slot])):
            expected = dense(step, keys, values, slot=slot, row=row)
            np.testing.assert_allclose(result.y[slot, row], expected, rtol=0, atol=1e-12)


def dense(
    step: Step, keys: NDArray[Any], values: NDArray[Any], *, slot: int, row: int
) -> NDArray[np.float64]:
    """Plain softmax attention of one row: keys and values ``[S, Hkv, d]``."""
    op = step.op
    last = int(step.past_len[slot]) + row + 1
    k = np.repeat(keys[:last], op.group, axis=1)  # [T, Hq, d]
    v = np.repeat(values[:last], op.group, axis=1)
    q = step.q[slot, row].reshape(op.num_heads, op.head_dim)
    logits = np.einsum("hd,thd->ht", q, k) * op.scale
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.asarray(np.einsum("ht,thd->hd", weights, v).reshape(-1))


def check_body(step: Step) -> None:
    """Within 1e-5 of the body's dense form and of the oracle."""
    step = zeroed(step)
    y = run_body(step)
    dense_y = run_body(step, replace(step.op, selector="all", budget_tokens=4096, local_blocks=2))
    expected = step.run().y
    for slot, rows in enumerate(step.row_count.tolist()):
        np.testing.assert_allclose(y[slot, :rows], dense_y[slot, :rows], rtol=0, atol=1e-5)
        np.testing.assert_allclose(y[slot, :rows], expected[slot, :rows], rtol=0, atol=1e-5)


def rotated() -> Iterator[tuple[Selector, int, int, int]]:
    """Every length and selector, with groups and batches in turn."""
    for shift, selector in enumerate(SELECTORS):
        for index, length in enumerate(SHORT):
            group = GROUPS[(index + 2 * shift) % len(GROUPS)]
            yield selector, length, group, BATCHES[(index + shift) % len(BATCHES)]


@pytest.mark.parametrize(("selector", "length", "group", "batch"), list(rotated()))
def test_oracle_whose_selection_covers_the_context_is_dense(
    selector: Selector, length: int, group: int, batch: int
) -> None:
    check_oracle(covered_step(selector, length, group=group, batch=batch))


@pytest.mark.parametrize(("index", "length"), list(enumerate(SHORT)))
def test_body_whose_selection_covers_the_context_is_dense(index: int, length: int) -> None:
    selector = SPARSE[index % len(SPARSE)]
    batch = BATCHES[index % len(BATCHES)]
    check_body(covered_step(selector, length, group=GROUPS[index % len(GROUPS)], batch=batch))


@pytest.mark.parametrize("selector", SPARSE)
@pytest.mark.parametrize("group", [1, 7, 16])
def test_a_covered_slot_beside_a_longer_one_is_dense(selector: Selector, group: int) -> None:
    """The step takes the sparse branch then; a row's selection covers its context all the same."""
    step = filled_step(
        covering(selector, 640, group=group, dim=DIM), [1300, 640, 63], rows=ROWS, seed=group
    )
    step = zeroed(step)
    y, expected = run_body(step), step.run(replace(step.op, selector="all")).y
    for slot, rows in ((1, 3), (2, 3)):
        np.testing.assert_allclose(y[slot, :rows], expected[slot, :rows], rtol=0, atol=1e-5)
    assert np.abs(y[0] - expected[0]).max() > 1e-3, "the longer slot leaves blocks out"


def test_a_list_of_131072_tokens_adds_up_its_weights_block_by_block() -> None:
    """The engine's softmax alone is off by 5e-6 to 1e-5 here, with the processor's kernels."""
    step = zeroed(covered_step("window", 131_071, group=7, batch=1))
    np.testing.assert_allclose(run_body(step), step.run().y, rtol=0, atol=1.5e-6)


@pytest.mark.slow
@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("lengths", [SHORT, LONG[:1], LONG[1:]], ids=["short", "128k-1", "128k"])
def test_every_length_group_and_batch_is_dense_in_oracle_and_body(
    selector: Selector, batch: int, lengths: tuple[int, ...]
) -> None:
    for length in lengths:
        widest = covered_step(selector, length, group=GROUPS[-1], batch=batch)
        for group in GROUPS:
            step = of_group(widest, group)
            check_oracle(step)
            if selector != "all":
                check_body(step)
