"""A checkpoint folder, read strictly: config.json and safetensors, one tensor at a time.

Nothing of a checkpoint is ever run: no pickle is opened and ``auto_map`` is not followed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.bf16 import fp32_from_bf16
from selfdraft.errors import ConfigError
from selfdraft.export.config import ConfigKeys
from selfdraft.export.language_part import language_part
from selfdraft.export.packed import (
    Codes,
    PackedLinear,
    Packing,
    find_packed,
    part_names,
    read_packing,
    unpack,
)
from selfdraft.export.safetensors_file import StoredTensor, read_header, without_duplicates
from selfdraft.manifest import MANIFEST_NAME

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
MAX_NAME_BYTES = 255
"""Longest file name of the usual file systems; asking for a longer one is an error of its own."""
RAW_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "U32": "<u4",
}
PACKED = "PACKED"
"""Dtype that a 4-bit linear of a quantised checkpoint has here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Config and tensors of one checkpoint; shards are opened only while a tensor is read."""

    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, tuple[Path, StoredTensor]]
    """File and place of every tensor of the language model, by the names of a text model."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Other towers of the checkpoint by their prefix, and what becomes of them."""
    packed: Mapping[str, PackedLinear] = field(default_factory=dict)
    """4-bit linears, each as one tensor ``<module>.weight`` of dtype PACKED in ``tensors``."""
    parts: Mapping[str, tuple[Path, StoredTensor]] = field(default_factory=dict)
    """The tensors that those consist of."""

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Check the folder and read every header.

        Raises ``ConfigError`` naming what is missing, truncated, doubled or not safetensors.
        """
        config = _read_config(path)
        if (path / INDEX_NAME).is_file():
            tensors = _indexed_tensors(path)
        elif (path / WEIGHTS_NAME).is_file():
            file = path / WEIGHTS_NAME
            tensors = {name: (file, entry) for name, entry in read_header(file).items()}
        else:
            raise _no_weights(path)
        part = language_part(config, tensors)
        plain = cls(path=path, config=part.config, tensors=part.tensors, left_out=part.left_out)
        packing = read_packing(ConfigKeys(part.config))
        return plain if packing is None else plain._with_packed(packing)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors of the language model."""
        places = {**self.tensors, **self.parts}.values()
        return sum(entry.length for _, entry in places)

    def names(self) -> tuple[str, ...]:
        """Every tensor name, sorted."""
        return tuple(sorted(self.tensors))

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor; ``ConfigError`` names it when it is missing."""
        return self._find(name).shape

    def dtype(self, name: str) -> str:
        """Dtype of a tensor as the container names it: F32, BF16, I64, ..."""
        return self._find(name).dtype

    def read(self, name: str) -> NDArray[np.float32]:
        """A fresh float32 copy of one tensor, in the checkpoint's own (torch) layout.

        Raises ``ConfigError`` when the tensor is missing or is not stored as F64, F32, F16 or
        BF16, or as a packed linear.
        """
        entry = self._find(name)
        if entry.dtype == PACKED:
            return np.ascontiguousarray(self.read_codes(name).values().T)
        if not is_float(entry.dtype):
            raise ConfigError(
                f"tensor {name!r} is stored as {entry.dtype}, which is no weight that is read",
                hint="use the checkpoint in bf16, fp16 or fp32, or 4-bit with its config",
            )
        return widen(self.read_raw(name), entry.dtype)

    def read_raw(self, name: str) -> NDArray[Any]:
        """The tensor in its stored type and shape (bf16 as uint16), read without mapping the file:
        pages of a mapping would count as memory in use."""
        entry = self._find(name)
        kind = RAW_TYPES.get(entry.dtype, "u1")
        if entry.length == 0:
            return np.empty(entry.shape, dtype=kind)
        file = (self.parts.get(name) or self.tensors[name])[0]
        try:
            count = entry.length // np.dtype(kind).itemsize
            raw = np.fromfile(file, dtype=kind, count=count, offset=entry.offset)
        except OSError as error:
            raise self._gone(name, file, str(error)) from None
        if len(raw) != count:
            raise self._gone(name, file, "it is shorter than before")
        return raw.reshape(entry.shape)

    def read_codes(self, name: str) -> Codes:
        """A packed linear unpacked."""
        linear = self.packed[name]
        scales = linear.parts.get("scales") or linear.parts["weight_scale"]
        return unpack(linear, self.read_raw, bf16=self.parts[scales][1].dtype == "BF16")

    def equal(self, first: str, second: str) -> bool:
        """Whether two tensors have the same dtype, shape and bytes (packed ones: values)."""
        one, other = self._find(first), self._find(second)
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        if one.dtype == PACKED:
            return bool(np.array_equal(self.read(first), self.read(second)))
        return bool(np.array_equal(self.read_raw(first), self.read_raw(second)))

    def _with_packed(self, packing: Packing) -> Checkpoint:
        entries = {name: place[1] for name, place in self.tensors.items()}
        packed = find_packed(packing, entries, self.read_raw)
        names = part_names(packed)
        tensors = {name: place for name, place in self.tensors.items() if name not in names}
        for name, linear in packed.items():
            if name in tensors:
                raise ConfigError(
                    f"tensor {name!r} is there packed and unpacked", hint="remove one of the two"
                )
            shape = (linear.outputs, linear.inputs)
            file = self.tensors[next(iter(linear.parts.values()))][0]
            tensors[name] = (
                file,
                StoredTensor(name=name, dtype=PACKED, shape=shape, offset=0, length=0),
            )
        parts = {name: self.tensors[name] for name in names}
        return replace(self, tensors=tensors, packed=packed, parts=parts)

    def _find(self, name: str) -> StoredTensor:
        place = self.parts.get(name) or self.tensors.get(name)
        if place is None:
            raise ConfigError(
                f"tensor {name!r} is missing from {self.path}",
                hint="fetch the complete checkpoint, with every shard",
            )
        return place[1]

    def _gone(self, name: str, file: Path, reason: str) -> ConfigError:
        """The error for a file that was removed or shortened since it was opened."""
        return ConfigError(
            f"tensor {name!r} cannot be read from {file}: {reason}",
            hint="leave the checkpoint alone while it is read",
        )


def widen(raw: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """Values as they are stored, as float32; bf16 is the upper half of one."""
    if dtype == "BF16":
        return fp32_from_bf16(raw)
    with np.errstate(over="ignore"):  # an F64 too large becomes Inf, refused on writing
        return raw.astype(np.float32)


def is_float(dtype: str) -> bool:
    """Whether ``Checkpoint.read`` converts this dtype."""
    return dtype in ("F64", "F32", "F16", "BF16", PACKED)


def read_bytes(path: Path) -> bytes:
    """A small file of the checkpoint; ``ConfigError`` when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", hint="check the file's permissions"
        ) from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the checkpoint; ``ConfigError`` when it is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=without_duplicates)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}", hint="fetch the file again, or mend it"
        ) from None
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path} holds a {type(data).__name__}, not an object", hint="fetch the file again"
        )
    return data


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise ConfigError(
            f"{path} is not a checkpoint: no such folder",
            hint="give the folder that holds config.json and the safetensors files",
        )
    if not (path / CONFIG_NAME).is_file() and (path / MANIFEST_NAME).is_file():
        raise ConfigError(
            f"{path} is not a checkpoint but a bundle",
            hint="give the checkpoint that it was exported from, or use the bundle as it is",
        )
    if not (path / CONFIG_NAME).is_file():
        raise ConfigError(
            f"{path} is not a checkpoint: {CONFIG_NAME} is missing",
            hint="give the folder that holds config.json and the safetensors files",
        )
    return read_json(path / CONFIG_NAME)


def _no_weights(path: Path) -> ConfigError:
    for pattern in PICKLE_PATTERNS:
        for file in sorted(path.glob(pattern)):
            return ConfigError(
                f"{path} has its weights only as a pickle, {file.name}; opening one can run code",
                hint="convert it where you trust it, with transformers: "
                "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR), and check "
                "that NEW_DIR still has the MTP tensors",
            )
    return ConfigError(
        f"{path} is not a checkpoint: neither {WEIGHTS_NAME} nor {INDEX_NAME} is there",
        hint="fetch the safetensors files of the checkpoint",
    )


def _indexed_tensors(path: Path) -> dict[str, tuple[Path, StoredTensor]]:
    """Tensors of all shards, checked in both directions against the index."""
    weight_map = read_json(path / INDEX_NAME).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{path / INDEX_NAME} has no weight_map", hint="fetch the index again")
    tensors: dict[str, tuple[Path, StoredTensor]] = {}
    for shard in sorted({str(name) for name in weight_map.values()}):
        for name, entry in read_header(_shard_path(path, shard)).items():
            if name in tensors:
                raise ConfigError(
                    f"tensor {name!r} is in two shards: {tensors[name][0].name} and {shard}",
                    hint="remove the shard that does not belong to this checkpoint",
                )
            tensors[name] = (path / shard, entry)
    for name, shard in weight_map.items():
        if name not in tensors or tensors[name][0].name != shard:
            raise ConfigError(
                f"tensor {name!r} is not in shard {shard}, where {INDEX_NAME} puts it",
                hint="the index and the shards come from different versions: fetch all again",
            )
    return tensors


def _shard_path(path: Path, shard: str) -> Path:
    if shard in ("", ".", "..") or "/" in shard or "\\" in shard or "\0" in shard:
        raise ConfigError(
            f"{INDEX_NAME} names the shard {shard!r}: shards must lie in the checkpoint folder",
            hint="do not use this checkpoint before you know why its index points elsewhere",
        )
    file = path / shard
    if len(shard.encode(errors="replace")) > MAX_NAME_BYTES or not file.is_file():
        raise ConfigError(
            f"shard {shard[:MAX_NAME_BYTES]} is missing from {path}, but {INDEX_NAME} names it",
            hint="fetch the missing shard",
        )
    return file
