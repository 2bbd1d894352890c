"""Opening a bundle: manifest first, then every file it names, its size and its hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from selfdraft.errors import BundleError
from selfdraft.manifest import MANIFEST_NAME, FileSpec, Manifest, load_manifest
from selfdraft.runtime.pruned import pruned_files
from selfdraft.runtime.state_check import check_states

ENGINES_FOLDER = "engines"
"""Plans built on a device; they have sidecars of their own and are not the manifest's."""

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle whose files are those of its manifest."""

    path: Path
    manifest: Manifest

    def file(self, name: str) -> Path:
        """Path of the file that the manifest lists as ``name``."""
        assert name in self.manifest.files, name
        return self.path / name


def open_bundle(path: Path, *, check_hashes: bool = True, engine_only: bool = False) -> Bundle:
    """The bundle at ``path``, after every check.

    Manifest and its states, file names, missing and extra files, sizes and (``check_hashes``)
    SHA-256, in that order. ``engine_only``: files that ``build --prune`` deleted may be missing.
    Raises ``BundleError`` with the first mismatch and the command that mends it.
    """
    path = Path(path)
    manifest = load_manifest(path)
    check_states(manifest)
    mend = f"export it again: selfdraft export CHECKPOINT -o {path} --overwrite (from {manifest.source.name})"
    for name in manifest.files:
        _check_name(path, name, mend)
    for name in _referenced(manifest):
        if name not in manifest.files:
            raise BundleError(f"{path}: the manifest uses {name} but does not list it", hint=mend)
    weights = manifest.weights_file  # nothing else is ever pruned
    pruned = {weights} & pruned_files(path) if not (path / weights).exists() else set()
    if pruned and not engine_only:
        raise BundleError(
            f"{path}: {_listed(sorted(pruned))} pruned, only its engines run",
            hint=f"use --backend tensorrt on the board, or {mend}",
        )
    _check_presence(path, manifest, mend, pruned)
    for name, spec in manifest.files.items():
        if name in pruned:
            continue
        try:
            _check_content(path / name, spec, mend, check_hash=check_hashes)
        except OSError as error:
            raise BundleError(
                f"{path / name} cannot be read: {error.strerror}",
                hint=f"check its permissions, or {mend}",
            ) from None
    return Bundle(path=path, manifest=manifest)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file in hexadecimal, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _check_name(path: Path, name: str, mend: str) -> None:
    parts = PurePosixPath(name).parts
    plain = parts and not name.startswith("/") and not {"..", "."} & set(name.split("/"))
    if not plain or "\\" in name or ":" in name or "\0" in name:
        raise BundleError(f"{path}: the manifest names a file outside: {name!r}", hint=mend)
    if not (path / name).resolve().is_relative_to(path.resolve()):
        raise BundleError(f"{path}: {name} is a link that leaves the bundle", hint=mend)


def _referenced(manifest: Manifest) -> Iterator[str]:
    yield manifest.weights_file
    yield manifest.embedding_file
    for graph in manifest.graphs.values():
        yield graph.file
    yield manifest.text.tokenizer
    if manifest.text.chat_template is not None:
        yield manifest.text.chat_template


def _check_presence(path: Path, manifest: Manifest, mend: str, pruned: set[str]) -> None:
    found = {
        file.relative_to(path).as_posix()
        for file in path.rglob("*")
        if not file.is_dir() and file.relative_to(path).parts[0] != ENGINES_FOLDER
    }
    wanted = (name for name in manifest.files if name not in pruned)
    missing = sorted(name for name in wanted if not (path / name).is_file())
    if missing:
        raise BundleError(f"{path}: {_listed(missing)} missing", hint=mend)
    extra = sorted(found - set(manifest.files) - {MANIFEST_NAME})
    if extra:
        raise BundleError(
            f"{path}: {_listed(extra)} not listed in {MANIFEST_NAME}",
            hint=f"remove the file, or {mend}",
        )


def _check_content(file: Path, spec: FileSpec, mend: str, *, check_hash: bool) -> None:
    size = file.stat().st_size
    if size != spec.bytes:
        raise BundleError(
            f"{file} has {size} bytes, the manifest says {spec.bytes}: truncated or replaced",
            hint=mend,
        )
    if check_hash and (found := file_sha256(file)) != spec.sha256:
        raise BundleError(
            f"{file} has SHA-256 {found}, the manifest says {spec.sha256}: changed after export",
            hint=mend,
        )


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{shown} {'is' if len(names) == 1 else 'are'}"
