"""Whether the files of a bundle, and of the engines built from it, are what was written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from selfdraft.errors import BundleError

if TYPE_CHECKING:
    from selfdraft.runtime.bundle import Bundle


ENGINE = "engine "
"""Begins the names of an engine's checks."""


class HashCheck(NamedTuple):
    """One file or one engine."""

    name: str
    passed: bool
    detail: str


def check_hashes(path: Path) -> list[HashCheck]:
    """The bundle's files, then each engine's plans. Needs no engine library.

    Raises ``BundleError`` where there is no bundle.
    """
    from selfdraft.manifest import load_manifest
    from selfdraft.runtime.bundle import ENGINES_FOLDER, open_bundle
    from selfdraft.runtime.trt.sidecar import SIDECAR_NAME

    load_manifest(path)
    try:
        bundle = open_bundle(path, engine_only=True)
        checks = [HashCheck("files", True, _files_text(bundle))]
    except BundleError as error:
        checks = [HashCheck("files", False, error.problem)]
    for sidecar in sorted((path / ENGINES_FOLDER).glob(f"*/{SIDECAR_NAME}")):
        checks += _engine(path, sidecar.parent.name)
    return checks


def _files_text(bundle: Bundle) -> str:
    """How many files were looked at, and which are gone on purpose."""
    names = bundle.manifest.files
    pruned = [name for name in names if not bundle.file(name).exists()]
    text = f"{len(names) - len(pruned)} files and their hashes"
    return f"{text}; pruned: {', '.join(pruned)}" if pruned else text


def _engine(path: Path, key: str) -> Iterator[HashCheck]:
    from selfdraft.runtime.bundle import file_sha256
    from selfdraft.runtime.trt.sidecar import engine_folder, manifest_sha256, read_sidecar

    name = f"{ENGINE}{key}"
    try:
        sidecar = read_sidecar(path, key)
    except BundleError as error:
        yield HashCheck(name, False, error.problem)
        return
    same = sidecar.built.manifest_sha256 == manifest_sha256(path)
    yield HashCheck(name, same, "built from this bundle" if same else "built from another bundle")
    for plan in sidecar.plans.values():
        file = engine_folder(path, key) / plan.file
        fits = file.is_file() and file_sha256(file) == plan.sha256
        yield HashCheck(f"{name}: {plan.file}", fits, "as built" if fits else "missing or changed")
