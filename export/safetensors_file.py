"""The safetensors container: header of a file read strictly, header of a new file laid out.

Layout (https://github.com/huggingface/safetensors): 8 bytes little-endian header length, a JSON
object ``name -> {dtype, shape, data_offsets}``, then the tensors without holes. The library
reads whole tensors only into types that NumPy has; here the offsets are needed as well, for
bf16 and for graphs that point into the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfdraft.errors import ConfigError

MAX_HEADER_BYTES = 100_000_000
MAX_DIMS = 16
ALIGNMENT = 64
"""Every tensor of a bundle starts at a multiple of this, so that it can be mapped in place."""

DTYPE_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
}
PAD_PREFIX = "__pad."
DAMAGED_HINT = "the file is damaged or its download was cut short: fetch it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where one tensor lies in a safetensors file."""

    name: str
    dtype: str
    """Name in the container: F32, BF16, U8, ..."""
    shape: tuple[int, ...]
    offset: int
    """First byte, counted from the start of the file."""
    length: int
    """Bytes."""


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Tensors of a file by name, in file order; every byte of it is accounted for.

    Raises ``ConfigError`` when the file is no safetensors file, or is truncated or damaged.
    """
    size, length, text = _read_raw_header(path)
    try:
        header = json.loads(text, object_pairs_hook=without_duplicates)
        header.pop("__metadata__", None)
        tensors = [_entry(name, fields, 8 + length) for name, fields in header.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{path} has a header that cannot be read: {error}", hint=DAMAGED_HINT
        ) from None
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.length))  # empty ones share an offset
    _check_spans(path, tensors, start=8 + length, size=size)
    return {tensor.name: tensor for tensor in tensors}


def lay_out(
    tensors: Sequence[tuple[str, str, tuple[int, ...]]],
) -> tuple[bytes, tuple[StoredTensor, ...]]:
    """Header bytes and places of ``(name, dtype, shape)``, each aligned to ``ALIGNMENT``.

    The container allows no holes, so a tensor whose size is no multiple of the alignment is
    followed by a tensor ``__pad.<n>`` of zero bytes; the header itself is padded with spaces.
    """
    spans: list[tuple[str, str, tuple[int, ...], int, int]] = []
    offset = 0
    for name, dtype, shape in tensors:
        length = math.prod(shape) * DTYPE_BYTES[dtype]
        spans.append((name, dtype, shape, offset, length))
        offset += length
        if gap := -offset % ALIGNMENT:
            spans.append((f"{PAD_PREFIX}{len(spans)}", "U8", (gap,), offset, gap))
            offset += gap
    fields = {
        name: {"dtype": dtype, "shape": list(shape), "data_offsets": [start, start + length]}
        for name, dtype, shape, start, length in spans
    }
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    return header, tuple(
        StoredTensor(name=name, dtype=dtype, shape=shape, offset=len(header) + start, length=length)
        for name, dtype, shape, start, length in spans
    )


def _read_raw_header(path: Path) -> tuple[int, int, bytes]:
    """File size, header length and header of a file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size >= 8 and length <= min(MAX_HEADER_BYTES, size - 8):
                return size, length, file.read(length)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", hint="check the file's permissions"
        ) from None
    raise ConfigError(
        f"{path} is truncated or no safetensors file: it has {size} bytes and its header is said "
        f"to take {length}",
        hint=DAMAGED_HINT,
    )


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object from ``json``'s pairs; ``ValueError`` names a key that occurs twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key!r} occurs twice")
        found[key] = value
    return found


def _entry(name: str, fields: dict[str, Any], data_start: int) -> StoredTensor:
    dtype, shape, (begin, end) = fields["dtype"], fields["shape"], fields["data_offsets"]
    numbers = [*shape, begin, end]
    plain = all(type(value) is int and 0 <= value < 2**63 for value in numbers)
    if not plain or len(shape) > MAX_DIMS:
        raise ValueError(f"tensor {name!r} has shape {shape} and offsets {[begin, end]}"[:200])
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"tensor {name!r} has the unknown dtype {dtype!r}")
    if math.prod(shape) * DTYPE_BYTES[dtype] != end - begin:
        raise ValueError(f"tensor {name!r}: {dtype} {shape} does not fill {end - begin} bytes")
    return StoredTensor(
        name=name,
        dtype=dtype,
        shape=tuple(shape),
        offset=data_start + begin,
        length=end - begin,
    )


def _check_spans(path: Path, tensors: list[StoredTensor], *, start: int, size: int) -> None:
    for tensor in tensors:
        if tensor.offset != start:
            raise ConfigError(
                f"{path}: tensor {tensor.name!r} starts at byte {tensor.offset}, expected {start}",
                hint=DAMAGED_HINT,
            )
        start += tensor.length
    if start != size:
        word = "truncated" if size < start else "too long"
        raise ConfigError(
            f"{path} is {word}: its header needs {start} bytes, the file has {size}",
            hint=DAMAGED_HINT,
        )
