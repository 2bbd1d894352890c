"""Which blocks and tokens a row sees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from support.attention_cases import SCORING, Step, filled_step, make_op, with_keys

from selfdraft.trt_plugins.cached_attention.selection import (
    chosen_blocks,
    selectable_blocks,
    selected_blocks,
    visible,
)


def blocks_of(step: Step) -> NDArray[np.bool_]:
    """Selected blocks ``[B, Hkv, n, blocks]`` after the step has run."""
    summary = step.run().states.get("summary")
    return selected_blocks(
        step.op,
        step.q,
        summary,
        past_len=step.past_len,
        row_count=step.row_count,
        attend_all=step.attend_all,
    )


@pytest.mark.parametrize(
    ("tokens", "share", "position", "chosen"),
    [
        (320, 0.0, 10_000, 2),  # 5 blocks, less 1 sink and 2 local
        (321, 0.0, 10_000, 3),
        (192, 0.0, 10_000, 0),
        (0, 0.0, 10_000, 0),
        (320, 0.5, 639, 2),  # both give 5 blocks
        (320, 0.5, 640, 3),  # 320.5 tokens begin a sixth
        (320, 0.1, 6399, 8),  # 640.04 tokens: 0.1 is 6554 parts of 65,536
        (0, 0.999, 100_000, 1558),
    ],
)
def test_budget_is_the_larger_of_tokens_and_share(
    tokens: int, share: float, position: int, chosen: int
) -> None:
    op = make_op(selector="mean_std", budget_tokens=tokens, budget_share=share)
    parts = round(share * 65536)
    budget = math.ceil(max(tokens, parts * (position + 1) / 65536) / 64)
    assert chosen_blocks(op, position) == chosen == max(budget - 3, 0)


def test_a_block_is_selectable_once_it_lies_wholly_before_the_local_window() -> None:
    op = make_op(selector="mean_std", sinks=1, local_blocks=2)
    assert list(selectable_blocks(op, 191)) == []
    assert list(selectable_blocks(op, 192)) == [1]
    assert list(selectable_blocks(op, 255)) == [1]
    assert list(selectable_blocks(op, 256)) == [1, 2]


@pytest.mark.parametrize("selector", SCORING)
def test_every_row_sees_sinks_window_and_its_own_number_of_chosen_blocks(selector: str) -> None:
    op = make_op(selector=selector, budget_tokens=448, sinks=2)
    step = filled_step(op, [1000, 130, 641], rows=5, seed=1)
    seen = blocks_of(step)
    for slot in range(3):
        for row in range(5):
            own = (int(step.past_len[slot]) + row) // 64
            for head_blocks in seen[slot, :, row]:
                assert head_blocks[: min(2, own + 1)].all()
                assert head_blocks[max(own - op.local_blocks + 1, 0) : own + 1].all()
                assert not head_blocks[own + 1 :].any()
                assert head_blocks.sum() == min(own + 1, 7)


@pytest.mark.parametrize("selector", ["mean_std", "min_max"])
def test_equal_scores_are_taken_in_block_order(selector: str) -> None:
    op = make_op(selector=selector, budget_tokens=320)
    step = filled_step(op, [640], rows=2, seed=2)
    for keys in (np.zeros(640), np.full(640, 0.75)):
        seen = blocks_of(with_keys(step, keys))
        assert (np.flatnonzero(seen[0, 0, 0]) == [0, 1, 2, 8, 9]).all()
        assert (seen == seen[0, 0, 0]).all()


@pytest.mark.parametrize("selector", ["mean_std", "min_max"])
def test_of_two_equal_best_blocks_the_lower_id_wins(selector: str) -> None:
    op = make_op(selector=selector, budget_tokens=256)
    step = filled_step(op, [640], rows=1, seed=3)
    keys = np.random.default_rng(4).normal(size=(640, op.head_dim)) * 0.1
    keys[6 * 64 : 7 * 64] = keys[3 * 64 : 4 * 64] = 5 * step.q[0, 0, : op.head_dim]
    step = replace(step, q=np.tile(step.q[0, 0, : op.head_dim], op.num_heads)[None, None])
    assert np.flatnonzero(blocks_of(with_keys(step, keys))[0, 0, 0]).tolist() == [0, 3, 8, 9]


def test_equal_windows_are_taken_in_block_order() -> None:
    op = make_op(selector="infllm_v2", budget_tokens=384)
    step = with_keys(filled_step(op, [705], rows=1, seed=5), np.zeros(705))
    assert np.flatnonzero(blocks_of(step)[0, 0, 0]).tolist() == [0, 1, 2, 9, 10, 11]


@pytest.mark.parametrize("selector", SCORING)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_keys_that_are_not_finite_give_a_defined_selection(selector: str, bad: float) -> None:
    op = make_op(selector=selector, budget_tokens=384)
    keys = np.random.default_rng(6).normal(size=(800, op.head_dim))
    keys[5 * 64 + 40] = bad
    step = with_keys(filled_step(op, [800], rows=2, seed=7), keys)
    seen = blocks_of(step)
    assert (seen.sum(axis=-1) == 6).all()
    # No score of the row has a meaning: it takes the lowest ids, and not the block with the key.
    lowest = op.budget_tokens // 64 - op.local_blocks
    assert seen[..., :lowest].all() and not seen[..., 5].any()
    assert np.isfinite(step.run().y).all()


@pytest.mark.parametrize("selector", SCORING)
def test_sinks_and_window_beyond_the_budget_leave_the_window_selector(selector: str) -> None:
    op = make_op(selector=selector, budget_tokens=64, sinks=3, local_blocks=4)
    step = filled_step(op, [1500, 700], rows=3, seed=8)
    window = replace(op, selector="window")
    assert (step.run().y == step.run(window).y).all()


@pytest.mark.parametrize("selector", SCORING)
def test_attend_all_of_one_slot_is_dense_there_and_sparse_elsewhere(selector: str) -> None:
    op = make_op(selector=selector)
    step = filled_step(op, [900, 900, 900], rows=3, seed=9, attend_all=[0, 1, 0])
    sparse = replace(step, attend_all=np.zeros(3, dtype=np.int64))
    y, dense = step.run().y, step.run(replace(op, selector="all")).y
    assert (y[1] == dense[1]).all()
    assert (y[[0, 2]] == sparse.run().y[[0, 2]]).all()
    assert (y[[0, 2]] != dense[[0, 2]]).all()


def test_sliding_window_hides_tokens_but_not_those_of_sink_blocks() -> None:
    op = make_op(selector="all", sliding_window=10, sinks=1)
    seen = visible(op, np.ones((1, 4), dtype=np.bool_), position=200)[0]
    assert np.flatnonzero(seen).tolist() == [*range(64), *range(191, 201)]
    seen = visible(replace(op, sinks=0), np.ones((1, 4), dtype=np.bool_), position=200)[0]
    assert np.flatnonzero(seen).tolist() == list(range(191, 201))


def test_rows_beyond_the_count_select_nothing() -> None:
    step = filled_step(make_op(selector="mean_std"), [700, 700], rows=4, seed=10, row_count=[2, 0])
    seen = blocks_of(step)
    assert seen[0, :, :2].any(axis=-1).all()
    assert not seen[0, :, 2:].any() and not seen[1].any()


@pytest.mark.parametrize("selector", ["window", *SCORING])
def test_counter_is_the_largest_union_of_blocks_of_any_slot_and_head(selector: str) -> None:
    op = make_op(selector=selector, budget_tokens=384)
    step = filled_step(op, [1100, 500, 900], rows=6, seed=11, row_count=[6, 2, 0])
    union = blocks_of(step).any(axis=2).sum(axis=-1)  # [B, Hkv]
    assert step.run().blocks_read == union.max() < 18
    one_dense = replace(step, attend_all=np.array([0, 0, 1]))
    assert one_dense.run().blocks_read == union.max()
    assert replace(step, attend_all=np.ones(3, dtype=np.int64)).run().blocks_read == 18
    covering = replace(op, budget_tokens=1100, local_blocks=17)
    assert step.run(covering).blocks_read == 18


def published_infllm_v2(
    q: NDArray[np.float64],
    keys: NDArray[np.float64],
    *,
    position: int,
    init: int,
    local: int,
    k: int,
) -> list[int]:
    """InfLLM-V2's selection for one kv head, as its paper and code state it.

    ``q [G, d]``, ``keys [T, d]``, of which those up to ``position`` are known. Block b is forced
    when ``b < init`` or ``b <= own <= b + local``, so ``local + 1`` blocks form the window.
    """

    def pool(size: int, stride: int) -> NDArray[np.float64]:
        known = keys[: position + 1]
        starts: Sequence[int] = range(0, len(known) - size + 1, stride)
        return np.array([known[s : s + size].mean(axis=0) for s in starts]).reshape(-1, q.shape[1])

    c1, c2 = pool(32, 16), pool(128, 64)
    num_blocks = position // 64 + 1
    block_score = np.full(num_blocks, -np.inf)
    if len(c1):
        root = math.sqrt(q.shape[1])
        lse = np.log(np.exp(q @ (c2 if len(c2) else c1).T / root).sum(axis=1))
        s = np.exp(q @ c1.T / root - lse[:, None]).sum(axis=0)
        for b in range(num_blocks):
            window = s[max(0, 4 * b - 1) : 4 * b + 4]
            block_score[b] = window.max() if len(window) else -np.inf
    own = position // 64
    for b in range(num_blocks):
        if b < init or b <= own <= b + local:
            block_score[b] = np.inf
    order = np.lexsort((np.arange(num_blocks), -block_score))
    return sorted(int(b) for b in order[: min(k, num_blocks)])


@pytest.mark.parametrize("group", [1, 2, 5, 16])
def test_infllm_v2_selects_what_the_published_rule_selects(group: int) -> None:
    local, k, dim = 3, 9, 8
    op = make_op(
        selector="infllm_v2",
        num_heads=2 * group,
        head_dim=dim,
        scale=1 / math.sqrt(dim),
        local_blocks=local + 1,
        budget_tokens=64 * k,
    )
    for length in (20, 31, 32, 95, 127, 128, 129, 400, 576, 577, 640, 703, 704, 705, 1100, 1500):
        step = filled_step(op, [length], rows=4, seed=length)
        keys = step.context(step.run(), 0)[0]
        seen = blocks_of(step)
        for row in range(int(step.row_count[0])):
            q = step.q[0, row].reshape(2, group, dim)
            for head in range(2):
                expected = published_infllm_v2(
                    q[head],
                    keys[:, head],
                    position=int(step.past_len[0]) + row,
                    init=1,
                    local=local,
                    k=k,
                )
                assert np.flatnonzero(seen[0, head, row]).tolist() == expected, (length, row)
