"""Attention of drafts behind the first one, for every place of a text at once.

A chain that starts at row p has the backbone's rows 0 … p in its cache, and of its own recycled rows those of
the same chain alone. So row p sees rows 0 … p of the first pass, row p of each later pass, and itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from selfdraft.export.attention_op import Attended, StepTensors
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention


def chain_step(batch: int, rows: int, depth: int) -> StepTensors:
    """The step of draft ``depth`` (1: the second one) of chains at rows 0 … ``rows`` - 1."""
    ones = torch.ones(batch, dtype=torch.int64)
    return StepTensors(ones * depth, ones * rows, ones, chain_attention)


def chain_attention(
    op: CachedAttention, q: Tensor, k: Tensor, v: Tensor, states: Sequence[Tensor]
) -> Attended:
    """``y [B, n, Hq d]``, and the states with this pass's keys and values behind them.

    ``states``: keys and values ``[B, Hkv, ≥ n, d]`` of the first pass, then of each recycled one.
    """
    batch, rows, _ = q.shape
    queries = q.reshape(batch, rows, op.num_kv_heads, op.group, op.head_dim)
    queries = queries.permute(0, 2, 3, 1, 4) * op.scale  # [B, Hkv, G, n, d]
    shape = (batch, rows, op.num_kv_heads, op.head_dim)
    added = [part.reshape(shape).transpose(1, 2) for part in (k, v)]  # [B, Hkv, n, d]
    pairs = [*states[2:], *added]
    scores = torch.einsum("bhgnd,bhtd->bhgnt", queries, states[0][:, :, :rows])
    later = torch.ones(rows, rows, dtype=torch.bool).triu(1)
    scores = scores.masked_fill(later, float("-inf"))
    own = [
        torch.einsum("bhgnd,bhnd->bhgn", queries, key[:, :, :rows]).unsqueeze(-1)
        for key in pairs[::2]
    ]
    weights = torch.cat([scores, *own], dim=-1).softmax(-1)
    y = torch.einsum("bhgnt,bhtd->bhgnd", weights[..., :rows], states[1][:, :, :rows])
    for index, value in enumerate(pairs[1::2]):
        y = y + weights[..., rows + index, None] * value[:, :, None, :rows]
    merged = y.permute(0, 3, 1, 2, 4).reshape(batch, rows, op.num_heads * op.head_dim)
    return merged, [*states, *added], None
