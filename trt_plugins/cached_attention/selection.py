"""Which blocks and tokens each row sees: docs/attention.md, Which blocks a row sees.

Everything follows from a row's own position, query and the summaries, never from the rows that
run with it; so a draft that is verified sees what the same token sees when it is decoded alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.trt_plugins.cached_attention.contract import BUDGET_PARTS, CachedAttention
from selfdraft.trt_plugins.cached_attention.scores import block_scores

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.floating[Any]]
BoolArray = NDArray[np.bool_]


def chosen_blocks(op: CachedAttention, position: int) -> int:
    """How many selectable blocks the budget leaves to the row at ``position``."""
    parts = max(op.budget_tokens * BUDGET_PARTS, op.budget_parts * (position + 1))
    budget = -(-parts // (BUDGET_PARTS * op.block))
    return max(budget - op.sinks - op.local_blocks, 0)


def selectable_blocks(op: CachedAttention, position: int) -> range:
    """Blocks behind the sinks that lie wholly before the local window of ``position``."""
    first_local = position // op.block - op.local_blocks + 1
    return range(op.sinks, max(first_local, op.sinks))


def selected_blocks(
    op: CachedAttention,
    q: FloatArray,
    summary: FloatArray | None,
    *,
    past_len: IntArray,
    row_count: IntArray,
    attend_all: IntArray,
) -> BoolArray:
    """Blocks that each row sees: ``[B, Hkv, n, blocks]``, up to the block of the longest sequence.

    ``q [B, n, Hq d]``; ``summary [B, Hkv, S / 64, vectors, d]`` as this step has updated it, None
    where the selector keeps none. Rows beyond ``row_count`` see nothing.
    """
    batch, num_rows, _ = q.shape
    num_blocks = -(-int((past_len + row_count).max(initial=0)) // op.block)
    seen = np.zeros((batch, op.num_kv_heads, num_rows, num_blocks), dtype=np.bool_)
    for slot in range(batch):
        past, rows = int(past_len[slot]), int(row_count[slot])
        blocks = slot_blocks(
            op,
            q[slot, :rows],
            None if summary is None else summary[slot],
            past_len=past,
            attend_all=bool(attend_all[slot]),
        )
        seen[slot, :, :rows, : blocks.shape[-1]] = blocks
    return seen


def reads_everything(op: CachedAttention, *, longest: int, attend_all: IntArray) -> bool:
    """Whether bodies take their dense branch: nothing of ``longest`` tokens is left out.

    Either all slots attend to everything, or the budget covers the longest sequence.
    """
    budget = -(-op.budget_tokens // op.block) if op.selector != "window" else 0
    covered = max(op.sinks + op.local_blocks, budget) * op.block
    windowed = op.selector == "window" and op.sliding_window > 0
    return bool(attend_all.all()) or (longest <= covered and not windowed)


def slot_blocks(
    op: CachedAttention,
    q: FloatArray,
    summary: FloatArray | None,
    *,
    past_len: int,
    attend_all: bool,
) -> BoolArray:
    """Blocks that the rows of one slot see: ``[Hkv, rows, blocks]``, up to the last row's own.

    ``q [rows, Hq d]``, ``summary [Hkv, S / 64, vectors, d]``. Each row for itself.
    """
    rows = q.shape[0]
    grouped = np.asarray(q, dtype=np.float64).reshape(rows, op.num_kv_heads, op.group, op.head_dim)
    seen = np.zeros((op.num_kv_heads, rows, -(-(past_len + rows) // op.block)), dtype=np.bool_)
    for row in range(rows):
        blocks = _row_blocks(
            op, grouped[row], summary, position=past_len + row, attend_all=attend_all
        )
        seen[:, row, : blocks.shape[1]] = blocks
    return seen


def _row_blocks(
    op: CachedAttention,
    q: NDArray[np.float64],
    summary: FloatArray | None,
    *,
    position: int,
    attend_all: bool,
) -> BoolArray:
    """Blocks that the row at ``position`` sees: ``[Hkv, own block + 1]``; ``q [Hkv, G, d]``."""
    own = position // op.block
    if attend_all or op.selector == "all":
        return np.ones((op.num_kv_heads, own + 1), dtype=np.bool_)
    seen = np.zeros((op.num_kv_heads, own + 1), dtype=np.bool_)
    seen[:, : op.sinks] = True
    seen[:, max(own - op.local_blocks + 1, 0) :] = True
    candidates = selectable_blocks(op, position)
    chosen = 0 if op.selector == "window" else chosen_blocks(op, position)
    if len(candidates) <= chosen:
        seen[:, candidates.start : candidates.stop] = True
    elif chosen:
        assert summary is not None
        scores = block_scores(op, q, summary, blocks=candidates, position=position)
        # Stable: of equal scores the lower block id comes first.
        best = np.argsort(-scores, axis=-1, kind="stable")[:, :chosen]  # [Hkv, chosen]
        np.put_along_axis(seen, candidates.start + best, True, axis=1)
    return seen


def visible(op: CachedAttention, blocks: BoolArray, *, position: int) -> BoolArray:
    """Tokens that the row at ``position`` sees: ``[Hkv, position + 1]``.

    ``blocks [Hkv, num_blocks]``: the blocks it sees. This is the one place that decides which
    rows see which tokens: a tree of drafts would pass the parent of each row here.
    """
    seen = np.repeat(blocks, op.block, axis=-1)[:, : position + 1]
    if op.sliding_window:
        token = np.arange(position + 1)
        near = token > position - op.sliding_window
        seen &= near | (token < op.sinks * op.block)
    return seen
