"""Attention-mass recall: the part of the dense softmax that the selected blocks hold.

The rows audited run once more through the layers, one layer's weights in memory at a time,
over the keys, values and summaries that the engine has written for a dense prefill. Their own
keys stand in its cache already, so rows at any positions can run together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.cli.text_passes import LayerArrays, TextPasses
from selfdraft.runtime.bundle import Bundle
from selfdraft.runtime.embedding import table_values
from selfdraft.runtime.numpy_layers import Array, DecoderLayer, rms_norm, rotation
from selfdraft.runtime.weights import load_layer, load_tensors
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.cached_attention.from_manifest import layer_ops
from selfdraft.trt_plugins.cached_attention.int8_kv import dequantise
from selfdraft.trt_plugins.cached_attention.selection import selectable_blocks, slot_blocks, visible


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """Recall by layer, and what the rows' last hidden state came out as."""

    selected: dict[int, NDArray[np.float64]]
    """``[rows, Hq]`` by sparse layer: mass of the blocks that the selector takes."""
    best: dict[int, NDArray[np.float64]]
    """The same for the choice with the most mass, at the same number of blocks."""
    hidden: Array
    """``[rows, H]`` the tap of the MTP head, to compare with the engine's."""


def replay(
    bundle: Bundle, passes: TextPasses, ids: Sequence[int], positions: Sequence[int]
) -> Recall:
    """Run the rows of ``ids`` at ``positions`` over the caches of ``passes``, densely."""
    manifest = bundle.manifest
    model = manifest.model
    table = table_values(bundle.path, manifest)
    x: Array = table[[ids[p] for p in positions]].astype(np.float64)[:, None]  # [rows, 1, H]
    rotary = rotation(model, np.array(positions), 1)
    selected, best = {}, {}
    weights_file = bundle.file(manifest.weights_file)
    ops = layer_ops(model, manifest.attention, kv_dtype=manifest.precision.kv)
    for index, op in enumerate(ops):
        weights = load_layer(weights_file, model, index)
        layer = DecoderLayer(model, op, weights, prefix=f"backbone.layers.{index}")
        q = layer.project(x, rotary)[0][:, 0]  # [rows, Hq, d]
        found = _attend_rows(op, q, passes.layer_states(index), positions)
        if op.selector != "all":
            selected[index], best[index] = found.selected, found.best
        x = layer.finish(x, found.y[:, None])
    if not model.mtp or model.mtp.tap == "post_norm":
        norm = load_tensors(weights_file)["backbone.norm"].astype(np.float64)
        x = rms_norm(x, norm, model.rms_norm_eps)
    return Recall(selected=selected, best=best, hidden=x[:, 0])


@dataclass(slots=True, kw_only=True)
class _LayerRows:
    """One layer's rows: dense output ``y [rows, Hq d]`` and masses ``[rows, Hq]``."""

    y: Array
    selected: NDArray[np.float64]
    best: NDArray[np.float64]


def _attend_rows(
    op: CachedAttention, q: Array, states: LayerArrays, positions: Sequence[int]
) -> _LayerRows:
    length = positions[-1] + 1
    keys, values = _read(states, "k", length), _read(states, "v", length)  # [Hkv, T, d]
    summary = states.get("summary")
    rows = len(positions)
    found = _LayerRows(
        y=np.empty((rows, op.num_heads * op.head_dim)),
        selected=np.ones((rows, op.num_heads)),
        best=np.ones((rows, op.num_heads)),
    )
    for row, position in enumerate(positions):
        end = position + 1
        grouped = q[row].reshape(op.num_kv_heads, op.group, op.head_dim)
        everything = np.ones((op.num_kv_heads, position // op.block + 1), dtype=np.bool_)
        mass = _softmax(
            grouped @ keys[:, :end].swapaxes(1, 2) * op.scale,
            visible(op, everything, position=position)[:, None],
        )  # [Hkv, G, T]
        found.y[row] = (mass @ values[:, :end]).reshape(-1)
        if op.selector == "all":
            continue
        query = q[row].reshape(1, -1)
        blocks = slot_blocks(op, query, summary, past_len=position, attend_all=False)[:, 0]
        for masses, chosen in (
            (found.selected, blocks),
            (found.best, _best_blocks(op, mass, blocks, position)),
        ):
            seen = visible(op, chosen, position=position)[:, None]
            masses[row] = np.where(seen, mass, 0.0).sum(axis=-1).reshape(-1)
    return found


def _best_blocks(
    op: CachedAttention, mass: Array, blocks: NDArray[np.bool_], position: int
) -> NDArray[np.bool_]:
    """``blocks [Hkv, own + 1]`` with the selectable ones replaced by those with the most mass."""
    starts = np.arange(0, position + 1, op.block)
    by_block = np.add.reduceat(mass.sum(axis=1), starts, axis=-1)  # [Hkv, own + 1]
    candidates = selectable_blocks(op, position)
    window = slice(candidates.start, candidates.stop)
    best = blocks.copy()
    best[:, window] = False
    for head in range(op.num_kv_heads):
        count = int(blocks[head, window].sum())
        order = np.argsort(-by_block[head, window], kind="stable")[:count]
        best[head, candidates.start + order] = True
    return np.asarray(best)


def _softmax(scores: Array, seen: NDArray[np.bool_]) -> Array:
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def _read(states: Mapping[str, NDArray[Any]], name: str, length: int) -> Array:
    """Keys or values ``[Hkv, length, d]`` of a layer as fp64."""
    cache = states[f"{name}_cache"][:, :length]
    if f"{name}_scale" in states:
        return dequantise(cache, states[f"{name}_scale"][:, :length])
    return cache.astype(np.float64)


def state_error(dense: TextPasses, sparse: TextPasses, *, layer: int, length: int) -> float:
    """Relative difference of a layer's keys and values between two prefills of one text.

    ``|| sparse - dense || / || dense ||`` over keys and values of the first ``length`` tokens.
    """
    apart = whole = 0.0
    for name in ("k", "v"):
        one = _read(dense.layer_states(layer), name, length)
        other = _read(sparse.layer_states(layer), name, length)
        apart += float(np.sum((other - one) ** 2))
        whole += float(np.sum(one**2))
    return float(np.sqrt(apart / whole)) if whole else 0.0
