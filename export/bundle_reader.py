"""Weights of a finished bundle as float32, and heads put together from two places."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from selfdraft.embedding_table import fp32_rows
from selfdraft.errors import ConfigError
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.families import read_model
from selfdraft.export.layerwise import bare_head
from selfdraft.export.modules import layer_module
from selfdraft.export.safetensors_file import StoredTensor, read_header
from selfdraft.export.stored_matrix import stored_values
from selfdraft.export.weight_plan import (
    DRAFT_HEAD,
    DRAFT_IDS,
    EMBEDDING,
    LM_HEAD,
    WeightTypes,
    plan_weights,
)
from selfdraft.export.weight_reader import PARTS, Array, CheckpointReader, WeightReader
from selfdraft.manifest import Manifest, ModelSpec
from selfdraft.trt_plugins.gated_delta_rule.from_manifest import backbone_ops

NORMS = ("hidden_norm", "embedding_norm", "final_norm", "input_norm", "post_norm")
TYPES = {"F32": "<f4", "F16": "<f2", "U16": "<u2", "U8": "u1", "I8": "i1", "I64": "<i8"}


class BundleReader:
    """What a bundle's files hold, unpacked; a tied head is the embedding, transposed."""

    def __init__(self, bundle: Path, manifest: Manifest) -> None:
        self._places: dict[str, tuple[Path, StoredTensor]] = {}
        for file in (manifest.weights_file, manifest.embedding_file):
            path = bundle / file
            self._places |= {name: (path, entry) for name, entry in read_header(path).items()}
        self._spec = manifest.model

    def tensor(self, name: str) -> Array:
        if name == LM_HEAD and not self._has(LM_HEAD):
            return np.ascontiguousarray(fp32_rows(self._table()).T)
        if name == DRAFT_HEAD and not self._has(DRAFT_HEAD):
            return self.tensor(LM_HEAD)
        if name in self._places:
            return _as_fp32(self._raw(name))
        parts = [f"{name}.{part}" for part in PARTS if f"{name}.{part}" in self._places]
        shape = matrix_shape(self._spec, name) if f"{name}.strips" in parts else None
        return stored_values({part: self._raw(part) for part in parts}, name, shape=shape)

    def rows(self, name: str) -> Iterator[tuple[slice, Array]]:
        whole = self.tensor(name)
        yield slice(0, len(whole)), whole

    def draft_ids(self) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self._raw(DRAFT_IDS)
        return found

    def embedding_rows(self, ids: NDArray[np.int64]) -> Array:
        """Rows ``ids`` of the embedding."""
        return fp32_rows({name: part[ids] for name, part in self._table().items()})

    def _table(self) -> dict[str, NDArray[Any]]:
        return {name: self._raw(name) for name in self._places if name.startswith(EMBEDDING)}

    def _has(self, name: str) -> bool:
        return any(f"{name}{part}" in self._places for part in ("", ".bf16", ".scale", ".strips"))

    def _raw(self, name: str) -> NDArray[Any]:
        path, entry = self._places[name]
        kind = np.dtype(TYPES[entry.dtype])
        count = entry.length // kind.itemsize
        raw = np.fromfile(path, dtype=kind, count=count, offset=entry.offset)
        return raw.reshape(entry.shape)


def matrix_shape(spec: ModelSpec, name: str) -> tuple[int, ...]:
    """``[in, out]`` of a bundle's matrix, which strips of codes do not tell: they are padded."""
    if name in (LM_HEAD, DRAFT_HEAD):
        trimmed = spec.mtp.draft_vocab_size if spec.mtp and name == DRAFT_HEAD else None
        return spec.hidden_size, trimmed or spec.vocab_size
    with torch.device("meta"):
        if name.startswith("mtp."):
            return bare_head(spec).get_parameter(name.removeprefix("mtp.")).shape
        layer = layer_module(spec, backbone_ops(spec, None)[int(name.split(".")[2])])
    return layer.get_parameter(name.split(".", 3)[3]).shape


def _as_fp32(values: NDArray[Any]) -> Array:
    return values.astype(np.float32, copy=False)


class HeadFrom:
    """``head`` for everything that drafts (``mtp.*`` and its vocabulary head), ``rest`` otherwise."""

    def __init__(self, head: WeightReader, rest: WeightReader) -> None:
        self._head, self._rest = head, rest

    def tensor(self, name: str) -> Array:
        return self._of(name).tensor(name)

    def rows(self, name: str) -> Iterator[tuple[slice, Array]]:
        return self._of(name).rows(name)

    def draft_ids(self) -> NDArray[np.int64]:
        return self._rest.draft_ids()

    def _of(self, name: str) -> WeightReader:
        return self._head if name.startswith("mtp.") or name == LM_HEAD else self._rest


class ShiftedNorms:
    """The head with 1 added to its norms: what a checkpoint that stores them as w - 1 needs."""

    def __init__(self, reader: WeightReader) -> None:
        self._reader = reader

    def tensor(self, name: str) -> Array:
        values = self._reader.tensor(name)
        is_norm = name.startswith("mtp.") and name.rpartition(".")[2] in NORMS
        return values + np.float32(1.0) if is_norm else values

    def rows(self, name: str) -> Iterator[tuple[slice, Array]]:
        return self._reader.rows(name)

    def draft_ids(self) -> NDArray[np.int64]:
        return self._reader.draft_ids()


def checkpoint_reader(path: Path, manifest: Manifest, bundle: BundleReader) -> CheckpointReader:
    """The weights of a checkpoint as this bundle would hold them in fp32.

    Raises ``ConfigError`` where it is another model, or has no MTP head.
    """
    checkpoint = Checkpoint.open(path)
    model = read_model(checkpoint)
    own, theirs = manifest.model, model.spec
    for size in ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads"):
        if getattr(own, size) != getattr(theirs, size):
            raise ConfigError(
                f"{path} has {size} {getattr(theirs, size)}, the bundle {getattr(own, size)}",
                hint="give the checkpoint that the bundle was made from",
            )
    if theirs.mtp is None:
        raise ConfigError(
            f"{path} has no MTP head", hint="give the checkpoint that the bundle was made from"
        )
    trimmed = own.mtp is not None and own.mtp.draft_vocab_size is not None
    ids = bundle.draft_ids() if trimmed else None
    plan = plan_weights(model, types=WeightTypes(), draft_ids=ids, packed={})
    return CheckpointReader(checkpoint, model, plan)
