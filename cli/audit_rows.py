"""Which rows of a text an audit looks at, and how many blocks each must read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from selfdraft.errors import ConfigError
from selfdraft.manifest import BLOCK_TOKENS, Manifest
from selfdraft.runtime.attention_record import sparse_layers
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.cached_attention.from_manifest import layer_ops
from selfdraft.trt_plugins.cached_attention.selection import chosen_blocks, selectable_blocks


def sparse_ops(manifest: Manifest) -> dict[int, CachedAttention]:
    """The op of every layer that selects, by layer. ``ConfigError`` where none does."""
    layers = sparse_layers(manifest)
    if not layers:
        raise ConfigError(
            "every layer of this bundle is dense, so there is no selection to audit",
            hint="export it with: selfdraft export CHECKPOINT -o BUNDLE --attention sparse",
        )
    model = manifest.model
    ops = layer_ops(model, manifest.attention, kv_dtype=manifest.precision.kv)
    by_layer = dict(zip(model.attention_layers, ops, strict=True))
    return {layer: by_layer[layer] for layer in layers}


def audited_ops(manifest: Manifest) -> dict[int, CachedAttention]:
    """As ``sparse_ops``; ``ConfigError`` also for a model whose rows a cache alone does not give."""
    ops = sparse_ops(manifest)
    model = manifest.model
    if model.delta is not None:
        raise ConfigError(
            f"{model.family} has layers with a recurrent state, whose rows cannot be computed anew "
            "from a cache",
            hint="compare texts with sparse and dense attention instead: selfdraft eval BUNDLE",
        )
    return ops


def blocks_of_row(op: CachedAttention, position: int) -> int:
    """Blocks that the row at ``position`` sees, whatever its scores."""
    own = position // op.block
    forced = {*range(min(op.sinks, own + 1)), *range(max(own - op.local_blocks + 1, 0), own + 1)}
    selectable = len(selectable_blocks(op, position))
    chosen = 0 if op.selector == "window" else chosen_blocks(op, position)
    return len(forced) + min(selectable, chosen)


def selectable_tokens(op: CachedAttention, position: int) -> range:
    """Tokens in neither sinks nor local window of the row at ``position``."""
    blocks = selectable_blocks(op, position)
    return range(blocks.start * op.block, blocks.stop * op.block)


def leaves_out(op: CachedAttention, position: int) -> bool:
    """Whether the row at ``position`` reads less than every block in use."""
    return blocks_of_row(op, position) < position // op.block + 1


def first_left_out(ops: Iterable[CachedAttention], *, length: int) -> int | None:
    """The first of ``length`` positions whose row leaves blocks out in some layer, if any does."""
    different = set(ops)
    # Within a block the budget only grows, so a row that leaves something out begins one.
    starts = range(0, length, BLOCK_TOKENS)
    return next((p for p in starts if any(leaves_out(op, p) for op in different)), None)


def audited_rows(ops: Sequence[CachedAttention], *, length: int, count: int) -> list[int]:
    """At most ``count`` positions of a text of ``length`` tokens, ascending, its last included.

    Spread evenly over the rows for which some layer leaves blocks out; where there is none,
    over the whole text.
    """
    last = length - 1
    first = first_left_out(ops, length=length) or 0
    return sorted({int(p) for p in np.linspace(first, last, min(count, last - first + 1))})
