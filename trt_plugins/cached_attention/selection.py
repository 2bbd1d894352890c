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
    grouped = np.asarray(q, dtype=np.float64).reshape(
        batch, num_rows, op.num_kv_heads, op.group, op.head_dim
    )
    for slot in range(batch):
        for row in range(int(row_count[slot])):
            seen[slot, :, row] = row_blocks(
                op,
                grouped[slot, row],
                None if summary is None else summary[slot],
                position=int(past_len[slot]) + row,
                num_blocks=num_blocks,
                attend_all=bool(attend_all[slot]),
            )
    return seen


def row_blocks(
    op: CachedAttention,
    q: NDArray[np.float64],
    summary: FloatArray | None,
    *,
    position: int,
    num_blocks: int,
    attend_all: bool,
) -> BoolArray:
    """Blocks that the row at ``position`` sees: ``[Hkv, num_blocks]``; ``q [Hkv, G, d]``."""
    own = position // op.block
    seen = np.zeros((op.num_kv_heads, num_blocks), dtype=np.bool_)
    if attend_all or op.selector == "all":
        seen[:, : own + 1] = True
        return seen
    seen[:, : min(op.sinks, own + 1)] = True
    seen[:, max(own - op.local_blocks + 1, 0) : own + 1] = True
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
    token = np.arange(position + 1)
    seen = blocks[:, token // op.block]
    if op.sliding_window:
        near = token > position - op.sliding_window
        seen &= near | (token < op.sinks * op.block)
    return seen
