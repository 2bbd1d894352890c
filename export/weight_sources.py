"""Sources of a rule in chunks, as the bundle has them: joined, ordered, offset and scaled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import ConfigError
from selfdraft.export.checkpoint import PACKED, Checkpoint, widen
from selfdraft.export.families.base import WeightRule
from selfdraft.export.int4 import BLOCKS
from selfdraft.export.weight_plan import WeightItem

CHUNK_ELEMENTS = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """One source in its stored type, outputs kept and ordered."""

    name: str
    dtype: str
    raw: NDArray[Any]


def input_major(checkpoint: Checkpoint, item: WeightItem) -> Iterator[NDArray[np.float32]]:
    """Row chunks of the joined, transposed matrix ``[in, out]`` from sources ``[out, in]``.

    Chunks end at multiples of the largest block, so that no group is split. Raises ``ConfigError``
    naming a tensor that holds NaN or infinity.
    """
    sources = _sources(checkpoint, item)
    outputs, inputs = sum(len(s.raw) for s in sources), sources[0].raw.shape[1]
    step = max(BLOCKS[0], CHUNK_ELEMENTS // outputs // BLOCKS[0] * BLOCKS[0])
    if item.block and item.block > step:
        step = item.block
    for first in range(0, inputs, step):
        rows = min(step, inputs - first)
        piece = np.empty((rows, outputs), dtype=np.float32)
        column = 0
        for source in sources:
            part = source.raw[:, first : first + rows]
            _check_finite(source, part, first)
            piece[:, column : column + len(part)] = widen(part.T, source.dtype)
            column += len(part)
        yield _scaled(item.rule, piece)


def output_major(checkpoint: Checkpoint, item: WeightItem) -> Iterator[NDArray[np.float32]]:
    """Row chunks of vectors, a table or filters, in their own order. Raises as ``input_major`` does."""
    for source in _sources(checkpoint, item):
        width = source.raw[0].size if source.raw.ndim > 1 and len(source.raw) else 1
        step = max(1, CHUNK_ELEMENTS // max(width, 1))
        for first in range(0, len(source.raw), step):
            part = source.raw[first : first + step]
            _check_finite(source, part, first, axis=0)
            values = _scaled(item.rule, widen(part, source.dtype))
            yield values.reshape(len(values), -1) if item.rule.layout == "channels" else values


def _scaled(rule: WeightRule, values: NDArray[np.float32]) -> NDArray[np.float32]:
    if rule.offset:
        values += np.float32(rule.offset)
    if rule.factor != 1.0:
        values *= np.float32(rule.factor)
    return values


def _sources(checkpoint: Checkpoint, item: WeightItem) -> list[_Source]:
    found = []
    for index, name in enumerate(item.rule.sources):
        dtype = checkpoint.dtype(name)
        raw = checkpoint.read(name) if dtype == PACKED else checkpoint.read_raw(name)
        order = item.rule.head_orders[index] if item.rule.head_orders else None
        if order is not None:
            heads = raw.reshape(-1, len(order), *raw.shape[1:])  # [heads, d, ...]
            raw = heads[:, list(order)].reshape(raw.shape)
        if item.rows is not None:
            raw = raw[item.rows]
        found.append(_Source(name=name, dtype="F32" if dtype == PACKED else dtype, raw=raw))
    return found


def _check_finite(source: _Source, part: NDArray[Any], first: int, axis: int = 1) -> None:
    """Refuse NaN and infinity; ``part`` starts at ``first`` along ``axis``."""
    if source.dtype == "BF16":
        bad = (part & np.uint16(0x7F80)) == 0x7F80
    else:
        with np.errstate(over="ignore"):
            bad = ~np.isfinite(part.astype(np.float32, copy=False))
    if not bad.any():
        return
    place = [int(i) for i in np.argwhere(bad)[0]]
    place[axis] += first
    raise ConfigError(
        f"tensor {source.name!r} holds values that are NaN or infinite, one of them at {place}",
        hint="fetch the checkpoint again; if it is so at its source, it cannot be used",
    )
