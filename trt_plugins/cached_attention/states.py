"""Zeroed states of one attention layer on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.trt_plugins.cached_attention.contract import CachedAttention

LayerStates = dict[str, NDArray[Any]]
"""States by the names of ``op.states``, in that order."""

STATE_DIMS: dict[str, tuple[str | int, ...]] = {
    "k_cache": ("batch", "heads", "capacity", "head_dim"),
    "v_cache": ("batch", "heads", "capacity", "head_dim"),
    "k_scale": ("batch", "heads", "capacity"),
    "v_scale": ("batch", "heads", "capacity"),
    "summary": ("batch", "heads", "blocks", "vectors", "head_dim"),
}
"""What the axes of each state count."""


def empty_states(
    op: CachedAttention, *, batch: int, capacity: int, fp32_as: type[np.floating[Any]] = np.float32
) -> LayerStates:
    """Caches ``[B, Hkv, S, d]``, scales ``[B, Hkv, S]``, summaries ``[B, Hkv, S/64, vectors, d]``.

    ``capacity`` (S) is a multiple of the block. ``fp32_as``: the type that holds fp32 caches (the
    fp64 oracle keeps what it computed).
    """
    cache = (batch, op.num_kv_heads, capacity, op.head_dim)
    blocks = (batch, op.num_kv_heads, capacity // op.block, op.summary_vectors, op.head_dim)
    cache_type = {"fp32": fp32_as, "fp16": np.float16, "int8": np.int8}[op.kv_dtype]
    forms: dict[str, tuple[tuple[int, ...], Any]] = {
        "k_cache": (cache, cache_type),
        "v_cache": (cache, cache_type),
        "k_scale": (cache[:3], np.float16),
        "v_scale": (cache[:3], np.float16),
        "summary": (blocks, np.float16),
    }
    return {name: np.zeros(*forms[name]) for name in op.states}
