"""Summaries of blocks of keys: what selectors score instead of reading the keys.

``[blocks, vectors, d]`` for each slot and kv head. Definitions: docs/attention.md, Summaries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.trt_plugins.cached_attention.contract import CachedAttention

FloatArray = NDArray[np.floating[Any]]

FINE_TOKENS, FINE_STRIDE = 32, 16
"""``infllm_v2``: window C1[w] holds the tokens 16w … 16w+31."""
COARSE_TOKENS, COARSE_STRIDE = 128, 64
"""``infllm_v2``: window C2[w] holds the tokens 64w … 64w+127."""


def stale_blocks(op: CachedAttention, *, past_len: int, rows: int) -> range:
    """Blocks whose summaries a step recomputes after it wrote ``rows`` keys at ``past_len``.

    From the block of the token before ``past_len``; ``infllm_v2`` from one earlier, since windows
    reach into the next block. Tokens of rejected drafts lie at ``past_len`` or behind: what they
    spoiled is recomputed here before it can be selected.
    """
    first = max(past_len - 1, 0) // op.block
    if op.selector == "infllm_v2":
        first = max(first - 1, 0)
    return range(first, -(-(past_len + rows) // op.block))


def refresh(
    op: CachedAttention, summary: FloatArray, keys: FloatArray, *, blocks: range, length: int
) -> None:
    """Recompute ``summary [Hkv, blocks, vectors, d]`` of ``blocks`` in place, rounded to its fp16.

    ``keys [Hkv, T, d]``, of which the first ``length`` tokens count. What is not complete yet is
    taken over the tokens so far; a window without any token stays as it is.
    """
    for block in blocks:
        if op.selector == "infllm_v2":
            _refresh_windows(summary, keys, block=block, length=length)
        elif op.summary_vectors:
            begin = block * op.block
            tokens = keys[:, begin : min(begin + op.block, length)].astype(np.float64)
            # Infinite keys, and those beyond fp16, are legal input; their spread may be NaN.
            with np.errstate(invalid="ignore", over="ignore"):
                centre, spread = _moments(tokens) if op.selector == "mean_std" else _box(tokens)
            summary[:, block, 0], summary[:, block, 1] = centre, spread


def complete_windows(position: int) -> tuple[int, int]:
    """How many C1 and C2 windows have their last token at ``position`` or before."""
    fine = (position + 1 - FINE_TOKENS) // FINE_STRIDE + 1
    coarse = (position + 1 - COARSE_TOKENS) // COARSE_STRIDE + 1
    return max(fine, 0), max(coarse, 0)


def _moments(tokens: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and population standard deviation of ``[Hkv, 64, d]`` over the tokens."""
    return tokens.mean(axis=1), tokens.std(axis=1)


def _box(tokens: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Centre and half width of ``[Hkv, 64, d]``, channel by channel."""
    low, high = tokens.min(axis=1), tokens.max(axis=1)
    return (high + low) / 2, (high - low) / 2


def _refresh_windows(summary: FloatArray, keys: FloatArray, *, block: int, length: int) -> None:
    """The four C1 windows that begin in ``block``, then its C2 window."""
    begin = block * COARSE_STRIDE
    windows = [(begin + FINE_STRIDE * i, FINE_TOKENS) for i in range(4)]
    windows.append((begin, COARSE_TOKENS))
    for vector, (start, tokens) in enumerate(windows):
        if start < length:
            window = keys[:, start : min(start + tokens, length)]
            summary[:, block, vector] = window.mean(axis=1, dtype=np.float64)
