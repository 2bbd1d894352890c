"""NumPy fp64 oracle of ``CachedAttention``: what every other body is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.trt_plugins.cached_attention import summaries
from selfdraft.trt_plugins.cached_attention.contract import STATES, CachedAttention
from selfdraft.trt_plugins.cached_attention.int8_kv import dequantise, quantise
from selfdraft.trt_plugins.cached_attention.selection import reads_everything, slot_blocks, visible

IntArray = NDArray[np.int64]
Float64 = NDArray[np.float64]
FloatArray = NDArray[np.floating[Any]]
CacheArray = NDArray[Any]
"""``[B, Hkv, S, d]``: floating, or int8 codes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attended:
    """Result of one step: ``y [B, n, Hq d]`` fp64, and the states that were updated in place."""

    y: Float64
    states: dict[str, NDArray[Any]]
    """Every state the op has, by its input name, in the order of the outputs."""
    blocks_read: int | None
    """Blocks that the step read for each slot and kv head, the largest; None for ``all``."""


def cached_attention(
    op: CachedAttention,
    q: FloatArray,
    k: FloatArray,
    v: FloatArray,
    *,
    k_cache: CacheArray,
    v_cache: CacheArray,
    k_scale: NDArray[np.float16] | None = None,
    v_scale: NDArray[np.float16] | None = None,
    summary: NDArray[np.float16] | None = None,
    past_len: IntArray,
    row_count: IntArray,
    attend_all: IntArray,
) -> Attended:
    """Append k, v at ``past_len``, recompute the summaries touched, and attend.

    ``q [B, n, Hq d]``, ``k, v [B, n, Hkv d]``; caches ``[B, Hkv, S, d]`` (int8 with scales
    ``[B, Hkv, S]`` fp16) and ``summary [B, Hkv, S / 64, vectors, d]`` fp16 are updated in place;
    ``past_len, row_count, attend_all [B]``. Rows beyond ``row_count`` write nothing and give
    zeros. The last cache slot is scratch, so ``past_len + row_count <= S - 1``. Raises
    ``ValueError`` for other shapes, types or lengths, and for states the op does not have.
    """
    found = (k_cache, v_cache, k_scale, v_scale, summary)
    states = {name: array for name, array in zip(STATES, found, strict=True) if array is not None}
    _check_states(op, states)
    _check_rows(op, {"q": q, "k": k, "v": v}, k_cache.shape)
    _check_lengths(q.shape[:2], k_cache.shape[2], past_len, row_count, attend_all)
    y = np.zeros(q.shape)
    most_blocks = 1
    for slot in np.flatnonzero(row_count).tolist():
        rows = int(row_count[slot])
        y[slot, :rows], blocks = _slot(
            op,
            {name: array[slot] for name, array in states.items()},
            {"q": q[slot, :rows], "k": k[slot, :rows], "v": v[slot, :rows]},
            past_len=int(past_len[slot]),
            attend_all=bool(attend_all[slot]),
        )
        most_blocks = max(most_blocks, blocks)
    blocks_read = _blocks_read(op, most_blocks, past_len, row_count, attend_all)
    return Attended(y=y, states=states, blocks_read=blocks_read)


def _slot(
    op: CachedAttention,
    states: dict[str, NDArray[Any]],
    rows: dict[str, FloatArray],
    *,
    past_len: int,
    attend_all: bool,
) -> tuple[Float64, int]:
    """Append, refresh and attend in one slot: ``y [rows, Hq d]``, blocks that the rows see."""
    length = past_len + rows["q"].shape[0]
    _append(op, states, "k", rows["k"], past_len)
    _append(op, states, "v", rows["v"], past_len)
    keys, values = (_read(states, name, length) for name in ("k", "v"))
    summary = states.get("summary")
    if summary is not None:
        stale = summaries.stale_blocks(op, past_len=past_len, rows=rows["q"].shape[0])
        summaries.refresh(op, summary, keys, blocks=stale, length=length)
    blocks = slot_blocks(op, rows["q"], summary, past_len=past_len, attend_all=attend_all)
    # Infinite and NaN keys that a row does see give NaN in its output, no warning.
    with np.errstate(invalid="ignore", over="ignore"):
        y = _attend(op, rows["q"], keys, values, blocks, past_len=past_len)
    return y, int(blocks.any(axis=1).sum(axis=-1).max())


def _blocks_read(
    op: CachedAttention,
    most_blocks: int,
    past_len: IntArray,
    row_count: IntArray,
    attend_all: IntArray,
) -> int | None:
    """The counter of docs/attention.md: ``most_blocks``, or all in use where a body is dense."""
    if op.selector == "all":
        return None
    longest = max(int((past_len + row_count).max(initial=0)), 1)
    if reads_everything(op, longest=longest, attend_all=attend_all):
        return -(-longest // op.block)
    return most_blocks


def _append(
    op: CachedAttention, states: dict[str, NDArray[Any]], name: str, x: FloatArray, past: int
) -> None:
    """Write ``x [rows, Hkv d]`` of one slot into its cache ``[Hkv, S, d]`` at ``past``."""
    rows = x.shape[0]
    heads = x.reshape(rows, op.num_kv_heads, op.head_dim).swapaxes(0, 1)  # [Hkv, rows, d]
    if op.kv_dtype == "int8":
        codes, scale = quantise(heads)
        states[f"{name}_cache"][:, past : past + rows] = codes
        states[f"{name}_scale"][:, past : past + rows] = scale
    else:
        states[f"{name}_cache"][:, past : past + rows] = heads


def _read(states: dict[str, NDArray[Any]], name: str, length: int) -> Float64:
    """The first ``length`` keys or values of one slot: ``[Hkv, length, d]``."""
    cache = states[f"{name}_cache"][:, :length]
    if f"{name}_scale" in states:
        return dequantise(cache, states[f"{name}_scale"][:, :length])
    return cache.astype(np.float64, copy=False)


def _attend(
    op: CachedAttention,
    q: FloatArray,
    keys: Float64,
    values: Float64,
    blocks: NDArray[np.bool_],
    *,
    past_len: int,
) -> Float64:
    """Output ``[rows, Hq d]`` of one slot: q ``[rows, Hq d]``, keys and values ``[Hkv, T, d]``.

    ``blocks [Hkv, rows, blocks]``. Row by row, and reading only what the row sees: rows together
    are bit for bit what they are alone, and what a row does not see cannot reach it, not even
    as NaN.
    """
    rows = q.shape[0]
    grouped = q.astype(np.float64).reshape(rows, op.num_kv_heads, op.group, op.head_dim)
    y = np.empty_like(grouped)
    for row in range(rows):
        position = past_len + row
        seen = visible(op, blocks[:, row], position=position)  # [Hkv, T]
        if seen.all():
            context = slice(position + 1)
            y[row] = _softmax_mix(op, grouped[row], keys[:, context], values[:, context])
            continue
        for head in range(op.num_kv_heads):
            tokens = np.flatnonzero(seen[head])
            y[row, head] = _softmax_mix(
                op, grouped[row, head], keys[head, tokens], values[head, tokens]
            )
    return y.reshape(rows, -1)


def _softmax_mix(op: CachedAttention, q: Float64, keys: Float64, values: Float64) -> Float64:
    """Softmax attention: q ``[..., G, d]`` over keys and values ``[..., T, d]``."""
    scores = q @ keys.swapaxes(-1, -2) * op.scale  # [..., G, T]
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores, out=scores)
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.asarray(weights @ values)


def _check_states(op: CachedAttention, states: dict[str, NDArray[Any]]) -> None:
    wanted = [name for name in STATES if name in op.inputs]
    if list(states) != wanted:
        raise ValueError(f"states given are {', '.join(states)}; the op has {', '.join(wanted)}")
    cache = states["k_cache"].shape
    if len(cache) != 4 or cache[1] != op.num_kv_heads or cache[3] != op.head_dim:
        raise ValueError(
            f"k_cache has shape {cache}, expected [B, {op.num_kv_heads}, S, {op.head_dim}]"
        )
    batch, kv_heads, slots, dim = cache
    shapes = {
        "k_cache": cache,
        "v_cache": cache,
        "k_scale": cache[:3],
        "v_scale": cache[:3],
        "summary": (batch, kv_heads, slots // op.block, op.summary_vectors, dim),
    }
    kinds = {"fp32": ("float32", "float64"), "fp16": ("float16",), "int8": ("int8",)}
    for name, array in states.items():
        dtypes = kinds[op.kv_dtype] if name.endswith("cache") else ("float16",)
        if array.shape != shapes[name] or array.dtype.name not in dtypes:
            raise ValueError(
                f"{name} is {array.dtype} {array.shape}, "
                f"expected {' or '.join(dtypes)} {shapes[name]}"
            )
    if op.summary_vectors and slots % op.block:
        raise ValueError(f"capacity {slots} is no multiple of the block, {op.block} tokens")


def _check_rows(op: CachedAttention, rows: dict[str, FloatArray], cache: tuple[int, ...]) -> None:
    num_rows = rows["q"].shape[1] if rows["q"].ndim == 3 else -1
    for name, array in rows.items():
        heads = op.num_heads if name == "q" else op.num_kv_heads
        expected = (cache[0], num_rows, heads * op.head_dim)
        if array.shape != expected:
            raise ValueError(f"{name} has shape {array.shape}, expected {expected}")


def _check_lengths(
    shape: tuple[int, ...],
    capacity: int,
    past_len: IntArray,
    row_count: IntArray,
    attend_all: IntArray,
) -> None:
    batch, num_rows = shape
    named = {"past_len": past_len, "row_count": row_count, "attend_all": attend_all}
    for name, array in named.items():
        if array.shape != (batch,):
            raise ValueError(f"{name} has shape {array.shape}, expected {(batch,)}")
    if (past_len < 0).any() or (row_count < 0).any() or (row_count > num_rows).any():
        raise ValueError(
            f"past_len {past_len.tolist()} or row_count {row_count.tolist()} "
            f"does not fit {num_rows} rows"
        )
    if (past_len + row_count > capacity - 1).any():
        raise ValueError(
            f"past_len {past_len.tolist()} + row_count {row_count.tolist()} "
            f"passes the last usable cache slot of {capacity}"
        )
