"""``selfdraft::CachedAttention`` in torch: a node while a graph is traced, computed otherwise.

Contract: docs/attention.md. Dense fp32 attention is written here in torch, a rung of its own;
other attribute sets run the NumPy oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfdraft.trt_plugins.cached_attention.contract import (
    OP_DOMAIN,
    OP_NAME,
    OP_VERSION,
    CachedAttention,
)

Attended = tuple[Tensor, list[Tensor], Tensor | None]


Attend = Callable[[CachedAttention, Tensor, Tensor, Tensor, Sequence[Tensor]], Attended]


class StepTensors:
    """``past_len``, ``row_count``, ``attend_all`` ``[B]`` of one step.

    ``attend`` stands for the op where a step sees other rows than a cache holds (training alone).
    """

    replay_rows: Tensor | None = None
    """``[B]`` rows of the logs before ``past_len``; hybrid models only."""

    def __init__(
        self,
        past_len: Tensor,
        row_count: Tensor,
        attend_all: Tensor,
        attend: Attend | None = None,
    ) -> None:
        self.past_len, self.row_count, self.attend_all = past_len, row_count, attend_all
        self.attend = attend


def cached_attention(
    op: CachedAttention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    states: Sequence[Tensor],
    step: StepTensors,
) -> Attended:
    """``y [B, n, Hq d]``, the updated states in the order of ``op.states``, and ``blocks_read [1]``.

    q ``[B, n, Hq d]``, k and v ``[B, n, Hkv d]``. States are replaced, not changed.
    """
    if step.attend is not None:
        return step.attend(op, q, k, v, states)
    if torch.onnx.is_in_onnx_export():
        return _node(op, q, k, v, states, step)
    if op.selector == "all" and op.kv_dtype == "fp32" and not op.sliding_window:
        y, k_cache, v_cache = _dense(op, q, k, v, states[0], states[1], step)
        return y, [k_cache, v_cache], None
    return _oracle(op, q, k, v, states, step)


def longest(step: StepTensors) -> int:
    """Tokens of the longest slot behind the step, at least one."""
    return max(int((step.past_len + step.row_count).max()), 1)


def _node(
    op: CachedAttention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    states: Sequence[Tensor],
    step: StepTensors,
) -> Attended:
    counts = op.selector != "all"
    outputs = torch.onnx.ops.symbolic_multi_out(
        f"{OP_DOMAIN}::{OP_NAME}",
        (q, k, v, *states, step.past_len, step.row_count, step.attend_all),
        {**op.onnx_attributes()},
        dtypes=[q.dtype, *(state.dtype for state in states), *[torch.int64] * counts],
        shapes=[q.shape, *(state.shape for state in states), *[[1]] * counts],
        version=OP_VERSION,
    )
    kept = 1 + len(states)
    return outputs[0], list(outputs[1:kept]), outputs[kept] if counts else None


def _dense(
    op: CachedAttention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    step: StepTensors,
) -> tuple[Tensor, Tensor, Tensor]:
    """Dense attention; padded rows go to the scratch slot S-1."""
    batch, rows, _ = q.shape
    position = step.past_len[:, None] + torch.arange(rows)  # [B, n]
    real = torch.arange(rows) < step.row_count[:, None]
    slot = torch.where(real, position, k_cache.shape[2] - 1)
    slots = torch.arange(batch)[:, None]
    k_cache, v_cache = k_cache.clone(), v_cache.clone()
    k_cache[slots, :, slot] = k.reshape(batch, rows, op.num_kv_heads, op.head_dim)
    v_cache[slots, :, slot] = v.reshape(batch, rows, op.num_kv_heads, op.head_dim)
    total = longest(step)
    keys, values = k_cache[:, :, :total], v_cache[:, :, :total]  # [B, Hkv, T, d]
    queries = q.reshape(batch, rows, op.num_kv_heads, op.group, op.head_dim)
    queries = queries.permute(0, 2, 3, 1, 4) * op.scale  # [B, Hkv, G, n, d]
    scores = torch.einsum("bhgnd,bhtd->bhgnt", queries, keys)
    visible = torch.arange(total) <= position[..., None]  # [B, n, T]
    scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    y = torch.einsum("bhgnt,bhtd->bnhgd", scores.softmax(-1), values)
    return y.reshape(batch, rows, op.num_heads * op.head_dim), k_cache, v_cache


def _oracle(
    op: CachedAttention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    states: Sequence[Tensor],
    step: StepTensors,
) -> Attended:
    from selfdraft.trt_plugins.cached_attention import oracle

    arrays: dict[str, Any] = {
        name: state.numpy().copy() for name, state in zip(op.states, states, strict=True)
    }
    result = oracle.cached_attention(
        op,
        q.numpy(),
        k.numpy(),
        v.numpy(),
        **arrays,
        past_len=step.past_len.numpy(),
        row_count=step.row_count.numpy(),
        attend_all=step.attend_all.numpy(),
    )
    y = torch.from_numpy(np.asarray(result.y, dtype=np.float32))
    read = None if result.blocks_read is None else torch.tensor([result.blocks_read])
    return y, [torch.from_numpy(arrays[name]) for name in op.states], read
