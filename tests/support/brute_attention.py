"""The attention op once more, from scratch and with loops: a second opinion on the oracle.

No cache, no state: everything from the keys and values of the whole context, token by token, in
Python floats. Shares no code with the op's bodies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.trt_plugins.cached_attention.contract import CachedAttention

Vector = list[float]


def brute_row(
    op: CachedAttention,
    q: NDArray[Any],
    keys: NDArray[Any],
    values: NDArray[Any],
    *,
    position: int,
    attend_all: bool = False,
) -> NDArray[np.float64]:
    """Output ``[Hq d]`` of one row: q ``[Hq d]``, keys and values ``[T, Hkv, d]``."""
    heads = q.astype(np.float64).reshape(op.num_heads, op.head_dim).tolist()
    out: Vector = []
    for kv_head in range(op.num_kv_heads):
        own = heads[kv_head * op.group : (kv_head + 1) * op.group]
        k = keys[: position + 1, kv_head].astype(np.float64).tolist()
        v = values[: position + 1, kv_head].astype(np.float64).tolist()
        blocks = brute_blocks(op, own, k, position=position, attend_all=attend_all)
        tokens = [t for t in range(position + 1) if _sees(op, blocks, t, position)]
        for head in own:
            out += _attend(op, head, [k[t] for t in tokens], [v[t] for t in tokens])
    return np.array(out)


def brute_blocks(
    op: CachedAttention,
    q: Sequence[Vector],
    keys: Sequence[Vector],
    *,
    position: int,
    attend_all: bool = False,
) -> set[int]:
    """Blocks that the query heads ``q`` of one kv head see, from its ``keys`` up to the row's."""
    own = position // 64
    if attend_all or op.selector == "all":
        return set(range(own + 1))
    forced = {b for b in range(own + 1) if b < op.sinks or b > own - op.local_blocks}
    if op.selector == "window":
        return forced
    share = round(op.budget_share * 65536) / 65536 * (position + 1)
    budget = math.ceil(max(op.budget_tokens, share) / 64)
    rest = [b for b in range(own + 1) if b not in forced]
    scores = _scores(op, q, keys, rest, position)
    ranked = sorted(rest, key=lambda b: (-scores[b], b))
    return forced | set(ranked[: max(budget - op.sinks - op.local_blocks, 0)])


def _sees(op: CachedAttention, blocks: set[int], token: int, position: int) -> bool:
    if token // 64 not in blocks:
        return False
    if op.sliding_window == 0 or token // 64 < op.sinks:
        return True
    return position - token < op.sliding_window


def _scores(
    op: CachedAttention,
    q: Sequence[Vector],
    keys: Sequence[Vector],
    blocks: Sequence[int],
    position: int,
) -> dict[int, float]:
    if op.selector == "infllm_v2":
        return _window_scores(op, q, keys, blocks, position)
    scores = dict.fromkeys(blocks, 0.0)
    for head in q if blocks else []:
        logits = {b: _logit(op, head, keys[64 * b : 64 * b + 64]) for b in blocks}
        total = _log_sum_exp(logits.values())
        for b in blocks:
            scores[b] += math.exp(logits[b] - total)
    return scores


def _logit(op: CachedAttention, q: Vector, tokens: Sequence[Vector]) -> float:
    logit = 0.0
    for channel, weight in enumerate(q):
        column = [token[channel] for token in tokens]
        if op.selector == "mean_std":
            centre = sum(column) / 64
            spread = math.sqrt(sum((x - centre) ** 2 for x in column) / 64)
        else:
            centre = (max(column) + min(column)) / 2
            spread = (max(column) - min(column)) / 2
        logit += weight * _fp16(centre) + op.spread * abs(weight) * _fp16(spread)
    return op.scale * logit


def _window_scores(
    op: CachedAttention,
    q: Sequence[Vector],
    keys: Sequence[Vector],
    blocks: Sequence[int],
    position: int,
) -> dict[int, float]:
    fine = _windows(keys, tokens=32, stride=16, position=position)
    coarse = _windows(keys, tokens=128, stride=64, position=position) or fine
    total = [0.0] * len(fine)
    for head in q:
        normaliser = _log_sum_exp([op.scale * _dot(head, c) for c in coarse]) if fine else 0.0
        for w, mean in enumerate(fine):
            total[w] += math.exp(op.scale * _dot(head, mean) - normaliser)
    return {
        b: max(total[w] for w in range(4 * b - 1, 4 * b + 4) if 0 <= w < len(fine)) for b in blocks
    }


def _windows(keys: Sequence[Vector], *, tokens: int, stride: int, position: int) -> list[Vector]:
    windows = []
    start = 0
    while start + tokens - 1 <= position:
        inside = keys[start : start + tokens]
        windows.append([_fp16(sum(column) / tokens) for column in zip(*inside, strict=True)])
        start += stride
    return windows


def _attend(
    op: CachedAttention, q: Vector, keys: Sequence[Vector], values: Sequence[Vector]
) -> Vector:
    logits = [op.scale * _dot(q, key) for key in keys]
    total = _log_sum_exp(logits)
    out = [0.0] * len(q)
    for logit, value in zip(logits, values, strict=True):
        weight = math.exp(logit - total)
        for channel, x in enumerate(value):
            out[channel] += weight * x
    return out


def _dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _log_sum_exp(logits: Iterable[float]) -> float:
    values = list(logits)
    largest = max(values)
    return largest + math.log(sum(math.exp(x - largest) for x in values))


def _fp16(x: float) -> float:
    """Summaries are stored in fp16."""
    return float(np.float16(x))
