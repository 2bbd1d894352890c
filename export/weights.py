"""The bundle's weight files, written tensor by tensor.

Memory holds the sources of one matrix as they are stored and one chunk of the output. Tensors start
at multiples of 64 bytes, so that ONNX Runtime and NumPy can map them in place; how the gaps are
filled is described in ``safetensors_file.lay_out``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from selfdraft.bf16 import bf16_from_fp32
from selfdraft.errors import ConfigError
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.int4 import pack, quantize, unpack
from selfdraft.export.int8 import quantize_int8, quantize_rows
from selfdraft.export.packed_join import join_codes
from selfdraft.export.safetensors_file import StoredTensor
from selfdraft.export.weight_plan import DRAFT_IDS, DTYPE_OF, WeightItem, WeightsPlan
from selfdraft.export.weight_sources import input_major, output_major
from selfdraft.export.weight_tuning import NO_TUNING, Tuning
from selfdraft.trt_plugins.int4_matmul.packing import pack_codes, pack_scales

__all__ = ["StoredTensor", "write_weights"]

MAX_HALF = float(np.finfo(np.float16).max)
OnBytes = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """Bytes of a stored tensor from ``start`` on."""

    name: str
    start: int
    data: memoryview


def write_weights(
    checkpoint: Checkpoint,
    plan: WeightsPlan,
    path: Path,
    on_bytes: OnBytes | None = None,
    *,
    tuning: Tuning = NO_TUNING,
) -> None:
    """Write one planned file and flush it to disk.

    Raises ``ConfigError`` naming a tensor that holds NaN or infinity.
    """
    done = 0
    with path.open("wb") as file:
        file.write(plan.header)
        file.truncate(plan.num_bytes)  # padding reads as zeros
        for item in plan.items:
            for chunk in _chunks(checkpoint, item, tuning):
                file.seek(plan.tensors[chunk.name].offset + chunk.start)
                file.write(chunk.data)
                done += len(chunk.data)
                if on_bytes:
                    on_bytes(done, plan.num_bytes)
        if plan.draft_ids is not None:
            file.seek(plan.tensors[DRAFT_IDS].offset)
            file.write(plan.draft_ids.astype("<i8").tobytes())
        _flush(file)
    if on_bytes:
        on_bytes(plan.num_bytes, plan.num_bytes)


def _chunks(checkpoint: Checkpoint, item: WeightItem, tuning: Tuning) -> Iterator[_Chunk]:
    """The item's bytes in pieces, each stored tensor from its start to its end."""
    starts = dict.fromkeys((name for name, _, _ in item.stored()), 0)
    pieces = _pieces(checkpoint, item, tuning)
    for piece in _in_strips(item, pieces) if item.strips else pieces:
        for name, array in piece.items():
            data = _bytes(array)
            yield _Chunk(name=name, start=starts[name], data=data)
            starts[name] += len(data)


def _pieces(
    checkpoint: Checkpoint, item: WeightItem, tuning: Tuning
) -> Iterator[dict[str, NDArray[Any]]]:
    """What is stored, by name, a chunk at a time."""
    target = item.rule.target
    if item.form == "packed":
        yield _packed_tensors(checkpoint, item)
    elif item.rule.layout != "matrix":
        for rows in output_major(checkpoint, item):
            yield _stored_rows(item, tuning.vector(target, rows))
    else:
        first = 0
        for piece in input_major(checkpoint, item):
            inputs = slice(first, first + len(piece))
            yield _stored_matrix(item, tuning.rows(target, inputs, piece), inputs, tuning)
            first += len(piece)


def _stored_matrix(
    item: WeightItem, piece: NDArray[np.float32], inputs: slice, tuning: Tuning
) -> dict[str, NDArray[Any]]:
    target = item.rule.target
    if item.form in (*DTYPE_OF, "bf16"):
        return _floats(item, piece)
    assert item.block is not None
    if item.form == "int8":
        codes, scales = quantize_int8(piece, item.block)
        return {f"{target}.int8": codes, f"{target}.scale": scales}
    importance = tuning.importance(target, inputs)
    codes, scales = quantize(piece, item.block, importance=importance)
    return {f"{target}.int4": pack(codes), f"{target}.scale": scales}


def _stored_rows(item: WeightItem, rows: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """A vector, or rows of the embedding table."""
    if item.form != "int8":
        return _floats(item, rows)
    codes, scales = quantize_rows(rows)
    return {f"{item.rule.target}.int8": codes, f"{item.rule.target}.scale": scales}


def _floats(item: WeightItem, values: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """In the float type that is stored. Raises ``ConfigError`` for values beyond it."""
    target = item.rule.target
    if item.form == "bf16":
        return {f"{target}.bf16": bf16_from_fp32(values, name=item.rule.sources[0])}
    return {target: _narrowed(item, values)}


def _narrowed(item: WeightItem, values: NDArray[np.float32]) -> NDArray[Any]:
    if item.form != "fp16":
        return values
    largest = float(np.abs(values).max(initial=0))
    if largest > MAX_HALF:
        raise ConfigError(
            f"{item.rule.sources[0]!r} holds {largest:.3g}, fp16 reaches {MAX_HALF:.0f}",
            hint="store it as int4, or on the CPU as bf16",
        )
    return values.astype(np.float16)


def _in_strips(
    item: WeightItem, pieces: Iterator[dict[str, NDArray[Any]]]
) -> Iterator[dict[str, NDArray[Any]]]:
    """The whole matrix as ``Int4MatMul`` reads it; memory holds its codes, a byte each."""
    target, op = item.rule.target, item.matmul
    codes = np.empty(item.shape, dtype=np.int8)
    scales = np.empty((item.shape[0] // op.group_size, item.shape[1]), dtype=np.float32)
    first = 0
    for piece in pieces:
        part = piece[f"{target}.scale"]
        rows = len(part) * op.group_size
        codes[first : first + rows] = unpack(piece[f"{target}.int4"], (rows, item.shape[1]))
        scales[first // op.group_size : first // op.group_size + len(part)] = part
        first += rows
        if item.has_order:
            yield {f"{target}.order": piece[f"{target}.order"]}
    yield {
        f"{target}.strips": pack_codes(codes, op),
        f"{target}.strip_scale": pack_scales(scales, op),
    }


def _packed_tensors(checkpoint: Checkpoint, item: WeightItem) -> dict[str, NDArray[Any]]:
    """Codes of the checkpoint under the bundle's names."""
    assert item.block is not None
    target = item.rule.target
    sources = [checkpoint.read_codes(name) for name in item.rule.sources]
    joined = join_codes(item.rule, sources, block=item.block, rows=item.rows)
    tensors: dict[str, NDArray[Any]] = {
        f"{target}.int4": pack(joined.codes),
        f"{target}.scale": joined.scales,
    }
    if item.has_zero:
        assert joined.zeros is not None
        tensors[f"{target}.zero"] = pack(joined.zeros)
    if item.has_order:
        assert joined.order is not None
        tensors[f"{target}.order"] = joined.order
    return tensors


def _bytes(array: NDArray[Any]) -> memoryview:
    """Little-endian bytes of an array, without a copy where it already is so."""
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return little.data.cast("B")


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
