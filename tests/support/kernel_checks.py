"""A step of the kernels against the NumPy oracle, part by part: each check names what it compares."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.attention_cases import settled
from support.kernel_step import KernelResult, KernelStep, expected_summaries, tokens_of

from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.cached_attention.int8_kv import quantise
from selfdraft.trt_plugins.cached_attention.scores import block_scores
from selfdraft.trt_plugins.cached_attention.selection import (
    chosen_blocks,
    reads_everything,
    selectable_blocks,
    visible,
)

ATTENTION_ERROR = 1e-3
"""Of the largest |V| attended: weights and int8 values are rounded to fp16 (2^-11 each, of random
sign), sums are fp32."""
OUTPUT_ERROR = 2.0**-25
"""Half of the smallest fp16 value: y is fp16."""
CUT_ERROR = 1e-4
"""Relative distance from the last chosen score within which fp32 scores may choose otherwise."""
SUMMARY_ERROR = 2.0**-10
"""Of the largest key of the block: one rounding to fp16, sums in fp32."""


def check_step(step: KernelStep, result: KernelResult) -> None:
    """Everything that a step leaves."""
    check_caches(step, result)
    check_summaries(step, result)
    check_logits(step, result)
    check_selection(step, result)
    check_attention(step, result)
    check_padding(step, result)
    check_counter(step, result)


def check_caches(step: KernelStep, result: KernelResult) -> None:
    """New tokens stand at past_len, quantised as the oracle does; nothing else has changed."""
    op = step.op
    expected = {name: array.copy() for name, array in step.states.items() if name != "summary"}
    for slot, count in enumerate(step.row_count.tolist()):
        token = int(step.past_len[slot]) + np.arange(count)
        at = (slot, token // op.block, slice(None), token % op.block)
        for name, rows in (("k", step.k), ("v", step.v)):
            new = rows[slot, :count]
            if op.kv_dtype == "int8":
                codes, scale = quantise(new)
                expected[f"{name}_cache"][at], expected[f"{name}_scale"][at] = codes, scale
            else:
                expected[f"{name}_cache"][at] = new
    for name, array in expected.items():
        np.testing.assert_array_equal(bits(result.states[name]), bits(array), err_msg=name)


def bits(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).view(np.uint8)


def check_summaries(step: KernelStep, result: KernelResult) -> None:
    """What is complete is that of the keys; what the step did not touch has not changed."""
    op = step.op
    if not op.summary_vectors:
        return
    for slot, count in enumerate(step.row_count.tolist()):
        length = int(step.past_len[slot]) + count
        found = result.states["summary"][slot]
        expected = expected_summaries(op, result.states, slot=slot, length=length)
        complete = np.zeros(expected.shape, dtype=np.bool_)
        complete[:, settled(op, length=length, blocks=expected.shape[1])] = True
        largest = np.nanmax(np.abs(expected), initial=1.0)
        error = np.abs(found.astype(np.float64) - expected)[complete].max(initial=0)
        assert error <= SUMMARY_ERROR * 4 * largest, f"slot {slot}: summary off by {error}"
        before = step.states["summary"][slot]
        np.testing.assert_array_equal(bits(found[~complete]), bits(before[~complete]))


def seen_blocks(
    step: KernelStep, result: KernelResult, *, slot: int, kv_head: int, row: int
) -> NDArray[np.bool_]:
    """Blocks that a row sees by the kernel's own list, up to its own block: ``[own + 1]``."""
    per_tile = step.shape.tile_query_rows
    blocks, rows = result.lists(slot, kv_head)[row // per_tile]
    assert (np.diff(blocks) > 0).all(), f"list of slot {slot} is not ascending: {blocks}"
    assert (rows > 0).all(), f"list of slot {slot} has blocks that no row sees"
    own = (int(step.past_len[slot]) + row) // step.op.block
    seen = np.zeros(own + 1, dtype=np.bool_)
    mine = blocks[(rows >> row % per_tile & 1) == 1]
    assert mine.max(initial=0) <= own, f"row {row} of slot {slot} sees block {mine.max()}"
    seen[mine] = True
    return seen


def all_rows(step: KernelStep) -> list[tuple[int, int, int]]:
    """(slot, kv head, row) of every real row."""
    return [
        (slot, head, row)
        for slot, count in enumerate(step.row_count.tolist())
        for head in range(step.op.num_kv_heads)
        for row in range(count)
    ]


def check_selection(step: KernelStep, result: KernelResult) -> None:
    """The kernel's list holds what the oracle's rule chooses, but for scores at the cut."""
    for slot, head, row in all_rows(step):
        seen = seen_blocks(step, result, slot=slot, kv_head=head, row=row)
        check_row_selection(step, result, seen, slot=slot, head=head, row=row)


def check_row_selection(
    step: KernelStep,
    result: KernelResult,
    seen: NDArray[np.bool_],
    *,
    slot: int,
    head: int,
    row: int,
) -> None:
    op, where = step.op, f"slot {slot}, head {head}, row {row}"
    position = int(step.past_len[slot]) + row
    if op.selector == "all" or step.attend_all[slot]:
        np.testing.assert_array_equal(seen, dense_blocks(op, position), err_msg=where)
        return
    candidates = selectable_blocks(op, position)
    always = np.ones(len(seen), dtype=np.bool_)
    always[candidates.start : candidates.stop] = False
    assert seen[always].all(), f"{where}: sinks or local window missing"
    chosen = 0 if op.selector == "window" else chosen_blocks(op, position)
    picked = seen[candidates.start : candidates.stop]
    assert picked.sum() == min(chosen, len(candidates)), f"{where}: {picked.sum()} of {chosen}"
    if not 0 < chosen < len(candidates):
        return
    scores = row_scores(step, result, candidates, slot=slot, head=head, row=row)
    cut = np.sort(scores)[-chosen]
    assert (scores[picked] >= cut * (1 - CUT_ERROR)).all(), f"{where}: a low score was chosen"
    assert (scores[~picked] <= cut * (1 + CUT_ERROR)).all(), f"{where}: a high score was left"


def dense_blocks(op: CachedAttention, position: int) -> NDArray[np.bool_]:
    """Every block, but for those that a dense row's sliding window hides as a whole."""
    block = np.arange(position // op.block + 1)
    if op.selector != "all" or not op.sliding_window:
        return np.ones(len(block), dtype=np.bool_)
    last = block * op.block + op.block - 1
    return (block < op.sinks) | (last > position - op.sliding_window)


def check_logits(step: KernelStep, result: KernelResult) -> None:
    """Logits behind what the rows need, and those of padding, stay unwritten."""
    op = step.op
    if not op.summary_vectors:
        return
    columns = 5 if op.selector == "infllm_v2" else 1
    for slot, count in enumerate(step.row_count.tolist()):
        needed = 0
        for row in range(count):
            position = int(step.past_len[slot]) + row
            candidates, chosen = selectable_blocks(op, position), chosen_blocks(op, position)
            if not step.attend_all[slot] and 0 < chosen < len(candidates):
                needed = position // op.block + 1 if columns == 5 else candidates.stop
        for head in range(op.num_kv_heads):
            found = result.workspace["logits"][slot, head]  # [T, 16, columns]
            outside = found[..., needed * columns :]
            assert np.isnan(outside).all(), f"slot {slot}: logits behind what is needed"
            used = (count - np.arange(found.shape[0]) * step.shape.tile_query_rows) * op.group
            padding = np.arange(found.shape[1]) >= used[:, None]  # [T, 16]
            assert np.isnan(found[padding]).all(), f"slot {slot}: logits of padding"


def row_scores(
    step: KernelStep, result: KernelResult, blocks: range, *, slot: int, head: int, row: int
) -> NDArray[np.float64]:
    """The oracle's scores ``[blocks]`` from the stored summaries."""
    op = step.op
    q = step.q[slot, row].astype(np.float64).reshape(op.num_kv_heads, op.group, op.head_dim)
    summary = result.states["summary"][slot, head : head + 1].astype(np.float32)
    position = int(step.past_len[slot]) + row
    return block_scores(op, q[head : head + 1], summary, blocks=blocks, position=position)[0]


def check_attention(step: KernelStep, result: KernelResult) -> None:
    """Attention over the kernel's own list, in fp64 over the very cache that it read."""
    op = step.op
    for slot in range(len(step.row_count)):
        keys, values = (tokens_of(op, result.states, name, slot) for name in ("k", "v"))
        for row in range(int(step.row_count[slot])):
            position = int(step.past_len[slot]) + row
            q = step.q[slot, row].astype(np.float64).reshape(op.num_kv_heads, op.group, -1)
            found = result.y[slot, row].astype(np.float64).reshape(q.shape)
            for head in range(op.num_kv_heads):
                blocks = seen_blocks(step, result, slot=slot, kv_head=head, row=row)
                tokens = np.flatnonzero(visible(op, blocks[None], position=position)[0])
                v = values[head, tokens]
                expected = attention(q[head], keys[head, tokens], v, op.scale)
                error = np.abs(found[head] - expected).max()
                allowed = ATTENTION_ERROR * np.abs(v).max() + OUTPUT_ERROR
                assert error <= allowed, f"slot {slot}, row {row}, head {head}: off by {error:.3g}"


def attention(
    q: NDArray[np.float64], keys: NDArray[np.float64], values: NDArray[np.float64], scale: float
) -> NDArray[np.float64]:
    """``[G, d]``: softmax attention of q ``[G, d]`` over ``[T, d]``."""
    logits = q @ keys.T * scale
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ values


def check_padding(step: KernelStep, result: KernelResult) -> None:
    """Rows of padding are zero, real rows are finite."""
    real = np.arange(step.q.shape[1]) < step.row_count[:, None]  # [B, n]
    assert not result.y[~real].any(), "padding is not zero"
    assert np.isfinite(result.y[real]).all(), "y is not finite"


def check_counter(step: KernelStep, result: KernelResult) -> None:
    """Blocks in use where the rule of all bodies is dense, else the largest union of rows."""
    op = step.op
    if op.selector == "all":
        assert result.blocks_read is None
        return
    longest = max(int((step.past_len + step.row_count).max()), 1)
    if reads_everything(op, longest=longest, attend_all=step.attend_all):
        expected = -(-longest // op.block)
    else:
        unions = [
            len(set().union(*(blocks.tolist() for blocks, _ in result.lists(slot, head))))
            for slot in range(len(step.row_count))
            for head in range(op.num_kv_heads)
        ]
        expected = max(1, *unions)
    assert result.blocks_read == expected
