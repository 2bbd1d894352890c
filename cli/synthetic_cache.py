"""Caches filled with stated random content, for measurements that need a length but no prompt.

Keys of a block are standard normal around a centre of its own, times the block's scale. Blocks of a
larger scale have a larger spread and so win with nearly every query: with ``block_spread`` 0.1
rows share about nine blocks in ten, with 0 each row chooses for itself. Summaries are those of the
keys as stored. What a model makes of such a cache means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.manifest import BLOCK_TOKENS, Manifest
from selfdraft.recurrent import DELTA_BLOCK, STATE_LEN
from selfdraft.runtime.backend import Backend, States
from selfdraft.runtime.slot_cache import SlotCache
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.cached_attention.from_manifest import layer_ops, mtp_op
from selfdraft.trt_plugins.cached_attention.int8_kv import dequantise, quantise
from selfdraft.trt_plugins.cached_attention.summaries import refresh

POOL_BLOCKS = 32
"""Blocks of noise drawn once and repeated; centres and scales are drawn for every block."""
CENTRE = 0.125
"""Standard deviation of a block's centre: what the mean of 64 independent keys has."""
PIECE = 64
"""Blocks made at a time."""

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a cache is filled with."""

    block_spread: float = 0.1
    """Standard deviation of the blocks' scales around 1."""
    seed: int = 0

    def described(self) -> str:
        """One line for a record."""
        return (
            f"standard normal values; keys around a centre per block (std {CENTRE}), times a scale "
            f"per block of 1 ± {self.block_spread}; seed {self.seed}"
        )


def filled_cache(
    backend: Backend, states: States, *, length: int, content: Content, slot: int = 0
) -> SlotCache:
    """Fill a slot's states up to ``length`` rows; the cache that a loop can ``restore``.

    Its tokens are random; the last one is in no cache yet. The arrays are the states themselves
    where the backend keeps them on the host.
    """
    manifest = backend.manifest
    lengths = {"backbone": length, "mtp": length if manifest.has_mtp else 0}
    arrays = backend.export_states(states, slot=slot, lengths=lengths)
    random = np.random.default_rng(content.seed)
    for prefix, op in _layers(manifest):
        own = {name: arrays[prefix.format(name)] for name in op.states}
        _fill_layer(op, own, random, length=length, spread=content.block_spread)
    if STATE_LEN in arrays:
        _fill_recurrent(arrays, random, length=length)
    backend.import_states(states, slot=slot, lengths=lengths, arrays=arrays)
    tokens = random.integers(manifest.model.vocab_size, size=length + 1)
    return SlotCache(
        tokens=tuple(tokens.tolist()),
        cached=length,
        drafter_cached=lengths["mtp"],
        prompt_rows=length,
        prefill="dense",
        arrays=arrays,
    )


def _layers(manifest: Manifest) -> list[tuple[str, CachedAttention]]:
    """Pattern of the state names of each layer, and its op."""
    model, plan, kv = manifest.model, manifest.attention, manifest.precision.kv
    ops = layer_ops(model, plan, kv_dtype=kv)
    layers = [
        (f"backbone.{{}}_{index}", op)
        for index, op in zip(model.attention_layers, ops, strict=True)
    ]
    if model.mtp:
        layers.append(("mtp.{}_0", mtp_op(model, plan, kv_dtype=kv)))
    return layers


def _fill_recurrent(
    arrays: Mapping[str, NDArray[Any]], random: np.random.Generator, *, length: int
) -> None:
    """States of gated delta nets as they might be at ``length`` tokens; zeros count as gates."""
    for name, array in arrays.items():
        if name.startswith(("backbone.recurrent_", "backbone.conv_rows_")):
            array[...] = CENTRE * random.standard_normal(array.shape)
    arrays[STATE_LEN][...] = length // DELTA_BLOCK * DELTA_BLOCK


def _fill_layer(
    op: CachedAttention,
    states: Mapping[str, NDArray[Any]],
    random: np.random.Generator,
    *,
    length: int,
    spread: float,
) -> None:
    heads, d = op.num_kv_heads, op.head_dim
    noise = random.standard_normal((heads, POOL_BLOCKS, BLOCK_TOKENS, d), dtype=np.float32)
    blocks = -(-length // BLOCK_TOKENS)
    scale = np.maximum(1 + spread * random.standard_normal((heads, blocks, 1, 1)), 0.1)
    centre = CENTRE * random.standard_normal((heads, blocks, 1, d), dtype=np.float32)
    for first in range(0, blocks, PIECE):
        piece = slice(first, min(first + PIECE, blocks))
        drawn = noise[:, np.arange(piece.start, piece.stop) % POOL_BLOCKS]
        keys = ((drawn + centre[:, piece]) * scale[:, piece]).astype(np.float32)
        _store(op, states, "k", keys, start=first * BLOCK_TOKENS)
        _store(op, states, "v", drawn, start=first * BLOCK_TOKENS)
    if op.summary_vectors:
        stored = _by_head(op, states["k_cache"])
        if op.kv_dtype == "int8":
            stored = dequantise(stored, _by_head(op, states["k_scale"], width=()))
        refresh(op, states["summary"], stored, blocks=range(blocks), length=length)


def _store(
    op: CachedAttention,
    states: Mapping[str, NDArray[Any]],
    name: str,
    values: FloatArray,
    *,
    start: int,
) -> None:
    """Write ``values [Hkv, blocks, 64, d]`` from token ``start`` on, as far as the cache goes."""
    rows = values.reshape(op.num_kv_heads, -1, op.head_dim)
    if op.kv_dtype != "int8":
        return _put(states[f"{name}_cache"], rows, start=start)
    codes, scales = quantise(rows)
    _put(states[f"{name}_cache"], codes, start=start)
    _put(states[f"{name}_scale"], scales, start=start)
    return None


def _put(cache: NDArray[Any], rows: NDArray[Any], *, start: int) -> None:
    """Write ``rows [Hkv, tokens, …]``; caches of boards are ``[blocks, Hkv, 64, …]``, of a CPU like ``rows``."""
    if cache.ndim > rows.ndim:
        blocks = rows.reshape(len(rows), -1, BLOCK_TOKENS, *rows.shape[2:])
        first = start // BLOCK_TOKENS
        cache[first : first + blocks.shape[1]] = np.moveaxis(blocks, 1, 0)
    else:
        rows = rows[:, : cache.shape[1] - start]
        cache[:, start : start + rows.shape[1]] = rows


def _by_head(
    op: CachedAttention, cache: NDArray[Any], *, width: tuple[int, ...] | None = None
) -> NDArray[Any]:
    """``[Hkv, tokens, …]`` of a cache in either layout; ``width`` of a token's values, None: ``d``."""
    width = (op.head_dim,) if width is None else width
    if cache.ndim > 2 + len(width):
        cache = np.moveaxis(cache, 1, 0)
    return cache.reshape(op.num_kv_heads, -1, *width)
