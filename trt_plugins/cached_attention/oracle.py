"""NumPy fp64 oracle of ``CachedAttention``: what every other body is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.trt_plugins.cached_attention.contract import CachedAttention

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.floating[Any]]


def visible(
    *, past_len: int, num_rows: int, num_slots: int, sliding_window: int = 0
) -> NDArray[np.bool_]:
    """Which rows of one slot see which cache slots: ``[num_rows, num_slots]`` bool.

    Row i stands at position ``past_len + i`` and sees every cache slot up to its own, or only the
    last ``sliding_window`` of those. This is the one place that decides it: a tree of drafts
    would pass the parent of each row here.
    """
    position = past_len + np.arange(num_rows)[:, None]  # [n, 1]
    slot = np.arange(num_slots)[None, :]  # [1, T]
    seen = slot <= position
    return seen & (slot > position - sliding_window) if sliding_window else seen


def cached_attention(
    op: CachedAttention,
    q: FloatArray,
    k: FloatArray,
    v: FloatArray,
    *,
    k_cache: FloatArray,
    v_cache: FloatArray,
    past_len: IntArray,
    row_count: IntArray,
    attend_all: IntArray,
) -> tuple[NDArray[np.float64], FloatArray, FloatArray]:
    """Append k, v and attend: ``(y [B, n, Hq d], k_cache, v_cache)``.

    ``q [B, n, Hq d]``, ``k, v [B, n, Hkv d]``, caches ``[B, Hkv, S, d]`` are updated in place and
    returned; ``past_len, row_count, attend_all [B]``. Rows beyond ``row_count`` write nothing and
    give zeros. The last cache slot is scratch, so ``past_len + row_count <= S - 1``. With selector
    ``all`` both values of ``attend_all`` mean the same. Raises ``ValueError`` for other shapes,
    lengths or a KV dtype that needs scales.
    """
    _check(op, q, k, v, k_cache, v_cache, past_len, row_count, attend_all)
    batch, num_rows, _ = q.shape
    y = np.zeros((batch, num_rows, op.num_heads * op.head_dim))
    for slot in range(batch):
        rows, past = int(row_count[slot]), int(past_len[slot])
        if rows == 0:
            continue
        end = past + rows
        shape = (rows, op.num_kv_heads, op.head_dim)
        k_cache[slot, :, past:end] = k[slot, :rows].reshape(shape).swapaxes(0, 1)  # [Hkv, rows, d]
        v_cache[slot, :, past:end] = v[slot, :rows].reshape(shape).swapaxes(0, 1)
        seen = visible(
            past_len=past, num_rows=rows, num_slots=end, sliding_window=op.sliding_window
        )
        y[slot, :rows] = _attend(
            op, q[slot, :rows], k_cache[slot, :, :end], v_cache[slot, :, :end], seen
        )
    return y, k_cache, v_cache


def _attend(
    op: CachedAttention,
    q: FloatArray,
    keys: FloatArray,
    values: FloatArray,
    seen: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Softmax attention of one slot: q ``[rows, Hq d]``, keys and values ``[Hkv, T, d]``."""
    rows = q.shape[0]
    grouped = q.astype(np.float64).reshape(rows, op.num_kv_heads, op.group, op.head_dim)
    grouped = grouped.transpose(1, 2, 0, 3)  # [Hkv, G, rows, d]
    grouped = grouped.reshape(op.num_kv_heads, op.group * rows, op.head_dim)
    keys, values = keys.astype(np.float64, copy=False), values.astype(np.float64, copy=False)
    scores = grouped @ keys.swapaxes(1, 2) * op.scale  # [Hkv, G rows, T]
    scores = scores.reshape(op.num_kv_heads, op.group, rows, -1)
    scores[:, :, ~seen] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores, out=scores)
    weights /= weights.sum(axis=-1, keepdims=True)
    out = weights.reshape(op.num_kv_heads, op.group * rows, -1) @ values  # [Hkv, G rows, d]
    out = out.reshape(op.num_heads, rows, op.head_dim)
    return np.asarray(out.swapaxes(0, 1).reshape(rows, -1))  # [rows, Hq d]


def _check(
    op: CachedAttention,
    q: FloatArray,
    k: FloatArray,
    v: FloatArray,
    k_cache: FloatArray,
    v_cache: FloatArray,
    past_len: IntArray,
    row_count: IntArray,
    attend_all: IntArray,
) -> None:
    if op.kv_dtype == "int8":
        raise ValueError("int8 caches need k_scale and v_scale, which this oracle does not take")
    batch, num_rows = q.shape[:2]
    kv = (batch, num_rows, op.num_kv_heads * op.head_dim)
    cache = (batch, op.num_kv_heads, k_cache.shape[2] if k_cache.ndim == 4 else -1, op.head_dim)
    expected = (
        ("q", q, (batch, num_rows, op.num_heads * op.head_dim)),
        ("k", k, kv),
        ("v", v, kv),
        ("k_cache", k_cache, cache),
        ("v_cache", v_cache, cache),
        ("past_len", past_len, (batch,)),
        ("row_count", row_count, (batch,)),
        ("attend_all", attend_all, (batch,)),
    )
    for name, array, shape in expected:
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, expected {shape}")
    if (past_len < 0).any() or (row_count < 0).any() or (row_count > num_rows).any():
        raise ValueError(
            f"past_len {past_len.tolist()} or row_count {row_count.tolist()} "
            f"does not fit {num_rows} rows"
        )
    if (past_len + row_count > cache[2] - 1).any():
        raise ValueError(
            f"past_len {past_len.tolist()} + row_count {row_count.tolist()} "
            f"passes the last usable cache slot of {cache[2]}"
        )
