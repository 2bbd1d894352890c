"""Scores of blocks for one row, from summaries alone: docs/attention.md, Scores."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.cached_attention.summaries import complete_windows

Float64 = NDArray[np.float64]
FloatArray = NDArray[np.floating[Any]]

WINDOWS = 4
"""C1 windows that begin in a block."""


def block_scores(
    op: CachedAttention, q: Float64, summary: FloatArray, *, blocks: range, position: int
) -> Float64:
    """``[Hkv, len(blocks)]``: how much each of ``blocks`` matters to the row at ``position``.

    ``q [Hkv, G, d]``, ``summary [Hkv, blocks, vectors, d]``. NaN has become -inf.
    """
    # Infinite and NaN keys are legal input with a defined order, no reason to warn.
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        if op.selector == "infllm_v2":
            scores = _window_scores(op, q, summary, blocks=blocks, position=position)
        else:
            scores = _centre_spread_scores(op, q, summary[:, blocks.start : blocks.stop])
    return _lowest_if_nan(scores)


def _centre_spread_scores(op: CachedAttention, q: Float64, summary: FloatArray) -> Float64:
    """``mean_std`` and ``min_max``: Σ over heads of the softmax over blocks."""
    centre = summary[:, :, 0].astype(np.float64).swapaxes(1, 2)  # [Hkv, d, J]
    spread = summary[:, :, 1].astype(np.float64).swapaxes(1, 2)
    logits = op.scale * (q @ centre + op.spread * (np.abs(q) @ spread))  # [Hkv, G, J]
    logits -= logits.max(axis=-1, keepdims=True)
    weights = np.exp(logits)
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.asarray(weights.sum(axis=1))


def _window_scores(
    op: CachedAttention, q: Float64, summary: FloatArray, *, blocks: range, position: int
) -> Float64:
    """``infllm_v2``: the largest S of the complete C1 windows that touch a block."""
    kv_heads, _, _, dim = summary.shape
    num_fine, num_coarse = complete_windows(position)
    fine = summary[:, :, :WINDOWS].reshape(kv_heads, -1, dim)[:, :num_fine]  # [Hkv, W, d]
    coarse = summary[:, :num_coarse, WINDOWS] if num_coarse else fine
    fine_logits = op.scale * (q @ fine.astype(np.float64).swapaxes(1, 2))  # [Hkv, G, W]
    coarse_logits = op.scale * (q @ coarse.astype(np.float64).swapaxes(1, 2))
    windows = np.exp(fine_logits - _log_sum_exp(coarse_logits)).sum(axis=1)  # [Hkv, W]
    windows = _lowest_if_nan(windows)
    scores = np.full((kv_heads, len(blocks)), -np.inf)
    for column, block in enumerate(blocks):
        touching = windows[:, max(WINDOWS * block - 1, 0) : WINDOWS * block + WINDOWS]
        scores[:, column] = touching.max(axis=1, initial=-np.inf)
    return scores


def _log_sum_exp(logits: Float64) -> Float64:
    """``[..., 1]`` over the last axis."""
    largest = logits.max(axis=-1, keepdims=True)
    return np.asarray(largest + np.log(np.exp(logits - largest).sum(axis=-1, keepdims=True)))


def _lowest_if_nan(scores: Float64) -> Float64:
    return np.where(np.isnan(scores), -np.inf, scores)
