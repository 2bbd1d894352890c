"""The bundle's weight files: laid out from shapes alone, then written tensor by tensor.

Memory holds one tensor of the checkpoint as float32 and one chunk of the output. Tensors start
at multiples of 64 bytes, so that ONNX Runtime and NumPy can map them in place; how the gaps are
filled is described in ``safetensors_file.lay_out``.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import ConfigError
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.config import not_supported
from selfdraft.export.families.base import ModelPlan, WeightRule
from selfdraft.export.int4 import BLOCKS, pack, quantize
from selfdraft.export.safetensors_file import StoredTensor, lay_out
from selfdraft.manifest import ModelSpec

__all__ = ["StoredTensor", "WeightsPlan", "plan_embedding", "plan_weights", "write_weights"]

CHUNK_ELEMENTS = 4_000_000
EMBEDDING = "embedding"
LM_HEAD = "lm_head.weight"
DRAFT_HEAD = "mtp.draft_head.weight"
DRAFT_IDS = "mtp.draft_ids"

WeightType = Literal["fp32", "int4"]
OnBytes = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""
Names = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightItem:
    """One rule and how it is stored."""

    rule: WeightRule
    int4_block: int | None = None
    """Inputs that share a scale; null: stored as float32."""
    rows: NDArray[np.int64] | None = None
    """Rows of the source that are kept; null: all."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the float32 target ``[in, out]`` or ``[n]``."""
        if self.rows is None:
            return self.rule.shape
        return (*self.rule.shape[:-1], len(self.rows))

    def stored(self) -> list[Names]:
        """Name, dtype and shape of the tensors it becomes."""
        name, shape = self.rule.target, self.shape
        if self.int4_block is None:
            return [(name, "F32", shape)]
        return [
            (f"{name}.int4", "U8", (shape[0] * shape[1] // 2,)),
            (f"{name}.scale", "F32", (shape[0] // self.int4_block, shape[1])),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPlan:
    """A weight file before it is written: every offset is known."""

    spec: ModelSpec
    """The model as stored: draft vocabulary set, and an int4 head of its own where tied."""
    items: tuple[WeightItem, ...]
    draft_ids: NDArray[np.int64] | None
    int4_block: int | None
    header: bytes
    tensors: Mapping[str, StoredTensor]
    """Every tensor of the file, padding left out."""
    num_bytes: int
    notes: tuple[str, ...]


def plan_weights(
    plan: ModelPlan,
    *,
    weights: WeightType,
    int4_block: int,
    draft_ids: NDArray[np.int64] | None,
) -> WeightsPlan:
    """Layout of ``weights.safetensors``. Raises ``ConfigError`` where int4 does not fit."""
    rules = [rule for rule in plan.rules if rule.target != EMBEDDING]
    spec, notes = plan.spec, []
    head = _head_rule(plan)
    if weights == "int4" and spec.tied_head:
        rules.append(head)
        spec = dataclasses.replace(spec, tied_head=False)
        notes.append("the LM head is an int4 copy of the embedding table, which stays fp32")
    block = None
    if weights == "int4":
        block, note = fit_int4_block([r for r in rules if r.layout == "matrix"], int4_block)
        notes += note
    items = [
        WeightItem(rule=rule, int4_block=block if rule.layout == "matrix" else None)
        for rule in rules
    ]
    names = [stored for item in items for stored in item.stored()]
    if draft_ids is not None:
        assert spec.mtp is not None, "a draft vocabulary without an MTP head"
        mtp = dataclasses.replace(spec.mtp, draft_vocab_size=len(draft_ids))
        spec = dataclasses.replace(spec, mtp=mtp)
        items.append(
            WeightItem(
                rule=dataclasses.replace(head, target=DRAFT_HEAD),
                int4_block=block,
                rows=draft_ids,
            )
        )
        names += [*items[-1].stored(), (DRAFT_IDS, "I64", (len(draft_ids),))]
    return _laid_out(spec, items, names, draft_ids=draft_ids, block=block, notes=notes)


def plan_embedding(plan: ModelPlan) -> WeightsPlan:
    """Layout of ``embedding.safetensors``: the table alone, float32."""
    items = [WeightItem(rule=rule) for rule in plan.rules if rule.target == EMBEDDING]
    return _laid_out(plan.spec, items, items[0].stored(), draft_ids=None, block=None, notes=[])


def write_weights(
    checkpoint: Checkpoint, plan: WeightsPlan, path: Path, on_bytes: OnBytes | None = None
) -> None:
    """Write one planned file and flush it to disk.

    Raises ``ConfigError`` naming a tensor that holds NaN or infinity.
    """
    done = 0
    with path.open("wb") as file:
        file.write(plan.header)
        file.truncate(plan.num_bytes)  # padding reads as zeros
        for item in plan.items:
            sources = [
                _read_source(checkpoint, item, index) for index in range(len(item.rule.sources))
            ]
            for chunk in _stored_chunks(item, sources):
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


def bytes_by_part(plans: Sequence[WeightsPlan]) -> dict[str, int]:
    """Bytes of embedding, backbone, lm_head, mtp and draft_head, padding left out."""
    parts: dict[str, int] = {}
    for plan in plans:
        for tensor in plan.tensors.values():
            part = "draft_head" if tensor.name.startswith("mtp.draft_") else tensor.name
            part = part.split(".")[0]
            parts[part] = parts.get(part, 0) + tensor.length
    return parts


def fit_int4_block(rules: Sequence[WeightRule], wanted: int) -> tuple[int, list[str]]:
    """The largest block up to ``wanted`` that divides the inputs of every matrix, and notes."""
    for block in (wanted, *(size for size in BLOCKS if size < wanted)):
        misfit = [rule for rule in rules if rule.shape[0] % block]
        if not misfit:
            note = f"int4 block is {block}: {wanted} does not divide every matrix"
            return block, [note] if block != wanted else []
    raise not_supported(
        f"int4 of {misfit[0].sources[0]!r}, whose {misfit[0].shape[0]} inputs are no multiple of "
        f"{BLOCKS[-1]},",
        hint="export with --weights fp32",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """Bytes of a stored tensor from ``start`` on."""

    name: str
    start: int
    data: memoryview


def _laid_out(
    spec: ModelSpec,
    items: list[WeightItem],
    names: list[Names],
    *,
    draft_ids: NDArray[np.int64] | None,
    block: int | None,
    notes: list[str],
) -> WeightsPlan:
    header, tensors = lay_out(names)
    wanted = {name for name, _, _ in names}
    return WeightsPlan(
        spec=spec,
        items=tuple(items),
        draft_ids=draft_ids,
        int4_block=block,
        header=header,
        tensors={tensor.name: tensor for tensor in tensors if tensor.name in wanted},
        num_bytes=tensors[-1].offset + tensors[-1].length,
        notes=tuple(notes),
    )


def _head_rule(plan: ModelPlan) -> WeightRule:
    """The rule of the LM head; for a tied one, made from the embedding table."""
    for rule in plan.rules:
        if rule.target == LM_HEAD:
            return rule
    table = next(rule for rule in plan.rules if rule.target == EMBEDDING)
    return dataclasses.replace(table, target=LM_HEAD, layout="matrix")


def _read_source(checkpoint: Checkpoint, item: WeightItem, index: int) -> NDArray[np.float32]:
    """One source of a rule as the bundle has it: offset, order and factor applied."""
    rule = item.rule
    array = _read_finite(checkpoint, rule.sources[index], item.rows)
    order = rule.head_orders[index] if rule.head_orders else None
    if order is not None:
        heads = array.reshape(-1, len(order), *array.shape[1:])  # [heads, d, ...]
        array = heads[:, list(order)].reshape(array.shape)
    if rule.offset:
        array += np.float32(rule.offset)
    if rule.factor != 1.0:
        array *= np.float32(rule.factor)
    return array


def _read_finite(
    checkpoint: Checkpoint, name: str, rows: NDArray[np.int64] | None
) -> NDArray[np.float32]:
    array = checkpoint.read(name)
    if rows is not None:
        array = array[rows]
    if not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))
        first = tuple(int(i) for i in bad[0])
        raise ConfigError(
            f"tensor {name!r} holds {len(bad)} values that are NaN or infinite, the first at "
            f"{list(first)}",
            hint="fetch the checkpoint again; if it is so at its source, it cannot be used",
        )
    return array


def _stored_chunks(item: WeightItem, sources: list[NDArray[np.float32]]) -> Iterator[_Chunk]:
    """The item's bytes in pieces, each tensor from its start to its end."""
    target = item.rule.target
    if item.rule.layout != "matrix":
        start = 0
        for source in sources:
            data = _bytes(source)
            yield _Chunk(name=target, start=start, data=data)
            start += len(data)
        return
    packed, scale = (names[0] for names in item.stored()) if item.int4_block else (target, "")
    start = scale_start = 0
    for piece in _input_major(sources):
        if item.int4_block is None:
            data = _bytes(piece)
        else:
            codes, scales = quantize(piece, item.int4_block)
            data = _bytes(pack(codes))
            scale_data = _bytes(scales)
            yield _Chunk(name=scale, start=scale_start, data=scale_data)
            scale_start += len(scale_data)
        yield _Chunk(name=packed, start=start, data=data)
        start += len(data)


def _bytes(array: NDArray[Any]) -> memoryview:
    """Little-endian bytes of an array, without a copy where it already is so."""
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return little.data.cast("B")


def _input_major(sources: list[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    """Row chunks of the joined, transposed matrix ``[in, out]`` from sources ``[out, in]``.

    Chunks end at multiples of the largest int4 block, so that no group is split.
    """
    outputs, inputs = sum(len(source) for source in sources), sources[0].shape[1]
    step = max(BLOCKS[0], CHUNK_ELEMENTS // outputs // BLOCKS[0] * BLOCKS[0])
    for first in range(0, inputs, step):
        rows = min(step, inputs - first)
        piece = np.empty((rows, outputs), dtype=np.float32)
        column = 0
        for source in sources:
            piece[:, column : column + len(source)] = source[:, first : first + rows].T
            column += len(source)
        yield piece


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
