"""Saved caches: what a slot holds, in a safetensors file that names the bundle it belongs to.

A long document is computed once; later runs load its rows and go on from there, with the tokens
that they would have given had they computed it themselves. Only the used part is written.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

import selfdraft
from selfdraft.errors import BundleError, ConfigError, ResourceError
from selfdraft.manifest import Manifest
from selfdraft.runtime.slot_cache import SlotCache

SCHEMA = "selfdraft.cache/1"
TOKENS = "tokens"
_ALIGN = 64
_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "int8": "I8", "int64": "I64"}
_COMPUTE_ANEW = "leave --load-cache out to compute it anew, and save it with --save-cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCache:
    """A saved cache as read; its arrays are read from the file when they are used."""

    slot: SlotCache
    extra: dict[str, str] = field(default_factory=dict)
    """What the one who saved it added."""


def bundle_identity(manifest: Manifest) -> str:
    """SHA-256 over the sizes and hashes of a bundle's files, as its manifest lists them."""
    files = {name: dataclasses.asdict(spec) for name, spec in manifest.files.items()}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def check_target(path: Path) -> None:
    """Refuse a place that cannot be written or holds something else, before the work is done.

    Raises ``ConfigError`` or ``ResourceError``.
    """
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent} is no folder", hint="make it, or choose another place")
    if not os.access(path.parent, os.W_OK):
        raise ResourceError(f"{path.parent} cannot be written", hint="choose another place")
    if path.exists() and not is_cache(path):
        raise ConfigError(f"{path} exists and is no saved cache", hint="choose another name")


def is_cache(path: Path) -> bool:
    """Whether the file is a saved cache, of any schema version."""
    try:
        return _read_header(path).schema.startswith("selfdraft.cache/")
    except (ConfigError, OSError):
        return False


def save_cache(
    path: Path,
    cache: SlotCache,
    manifest: Manifest,
    *,
    extra: Mapping[str, str] | None = None,
) -> int:
    """Write ``cache`` to ``path``, which appears whole or not at all; bytes written.

    Raises ``ConfigError`` for a place that is taken, ``ResourceError`` for a full disk.
    """
    check_target(path)
    metadata = {
        "schema": SCHEMA,
        "selfdraft_version": selfdraft.__version__,
        "bundle": bundle_identity(manifest),
        "model": manifest.source.name,
        "attention": _attention_text(manifest),
        "prefill": cache.prefill,
        "cached": str(cache.cached),
        "drafter_cached": str(cache.drafter_cached),
        "prompt_rows": str(cache.prompt_rows),
        **{f"extra.{name}": text for name, text in (extra or {}).items()},
    }
    arrays = {TOKENS: np.array(cache.tokens, dtype=np.int64), **cache.arrays}
    header = _header_bytes(metadata, arrays)
    size = len(header) + sum(array.nbytes for array in arrays.values())
    with _replacing(path, size) as file:
        file.write(header)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).data if array.size else b"")
    return size


def load_cache(path: Path, manifest: Manifest) -> SavedCache:
    """The saved cache at ``path`` for the bundle of ``manifest``.

    Raises ``ConfigError`` when it cannot be read or is none, ``BundleError`` when it is of another
    bundle.
    """
    header = _read_header(path)
    if header.schema != SCHEMA:
        raise ConfigError(
            f"{path} has schema {header.schema}, this selfdraft reads {SCHEMA}",
            hint="update selfdraft, or " + _COMPUTE_ANEW,
        )
    metadata = header.metadata
    model = metadata.get("model")
    if metadata.get("bundle") != bundle_identity(manifest):
        raise BundleError(
            f"{path} was saved from another bundle ({model}), not from this one "
            f"({manifest.source.name})",
            hint="load it with the bundle it was saved from, or " + _COMPUTE_ANEW,
        )
    if metadata.get("attention") != _attention_text(manifest):
        raise BundleError(
            f"{path} was saved with another attention plan than this bundle's", hint=_COMPUTE_ANEW
        )
    return SavedCache(slot=_slot(path, header), extra=_extra(metadata))


_LENGTHS = ("cached", "drafter_cached", "prompt_rows")


def _slot(path: Path, header: _Header) -> SlotCache:
    arrays = header.arrays()
    prefill = header.metadata.get("prefill")
    lengths = [header.metadata.get(name, "") for name in _LENGTHS]
    tokens = arrays.pop(TOKENS, None)
    plain = tokens is not None and tokens.dtype == np.int64 and tokens.ndim == 1
    if not plain or not all(n.isdecimal() for n in lengths) or prefill not in ("dense", "sparse"):
        raise _damaged(path, "its lengths or tokens are missing")
    assert tokens is not None
    cached, drafter_cached, prompt_rows = map(int, lengths)
    if not max(drafter_cached, prompt_rows) <= cached <= tokens.size:
        raise _damaged(path, f"{cached} rows of {tokens.size} tokens")
    return SlotCache(
        tokens=tuple(tokens.tolist()),
        cached=cached,
        drafter_cached=drafter_cached,
        prompt_rows=prompt_rows,
        prefill=prefill,  # type: ignore[arg-type]
        arrays=arrays,
    )


def _extra(metadata: Mapping[str, str]) -> dict[str, str]:
    prefix = "extra."
    return {
        name.removeprefix(prefix): text
        for name, text in metadata.items()
        if name.startswith(prefix)
    }


def _attention_text(manifest: Manifest) -> str:
    plan = manifest.attention
    return json.dumps(dataclasses.asdict(plan) if plan else None, sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """The head of a safetensors file that the library has checked."""

    path: Path
    start: int
    """Where the data begins."""
    tensors: dict[str, Any]
    metadata: dict[str, str]

    @property
    def schema(self) -> str:
        return self.metadata.get("schema", "")

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every tensor, its values read from the file when they are used."""
        types = {stored: name for name, stored in _DTYPES.items()}
        file = np.memmap(self.path, dtype=np.uint8, mode="r")
        arrays = {}
        for name, entry in self.tensors.items():
            if entry["dtype"] not in types:
                raise _damaged(self.path, f"{name} has type {entry['dtype']}")
            first, end = (self.start + offset for offset in entry["data_offsets"])
            arrays[name] = file[first:end].view(types[entry["dtype"]]).reshape(entry["shape"])
        return arrays


def _read_header(path: Path) -> _Header:
    """Raises ``ConfigError`` when the file cannot be read, is cut short or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        # The library checks that sizes, shapes and offsets agree with each other and the file.
        with safe_open(path, framework="numpy"):
            pass
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            tensors = json.loads(file.read(size))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist", hint="save one with --save-cache") from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror or error}", hint="check its permissions"
        ) from None
    except SafetensorError as error:
        raise _damaged(path, f"{error}; or it is no saved cache, but e.g. JSON of /save") from None
    metadata = tensors.pop("__metadata__", {})
    if not str(metadata.get("schema", "")).startswith("selfdraft.cache/"):
        raise ConfigError(f"{path} is no saved cache", hint="give a file of --save-cache")
    return _Header(path=path, start=8 + size, tensors=tensors, metadata=metadata)


def _damaged(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} is damaged: {why}", hint=_COMPUTE_ANEW)


def _header_bytes(metadata: dict[str, str], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    for name, array in arrays.items():
        end = start + array.nbytes
        entries[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(entries, ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % _ALIGN)
    return len(text).to_bytes(8, "little") + text


@contextmanager
def _replacing(path: Path, size: int) -> Iterator[BinaryIO]:
    """A file that becomes ``path`` when the block ends well. Raises ``ResourceError``."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        free = shutil.disk_usage(path.parent).free
        if free < size:
            raise ResourceError(
                f"{path} needs {size / 2**30:.2f} GiB, {free / 2**30:.2f} GiB are free",
                hint="free disk space, or choose another disk",
            )
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise ResourceError(
            f"{path} cannot be written: {error.strerror or error}", hint="choose another place"
        ) from None
    finally:
        partial.unlink(missing_ok=True)
