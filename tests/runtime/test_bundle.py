"""A bundle opens only when every file is the one its manifest describes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from selfdraft.errors import BundleError
from selfdraft.manifest import FileSpec, load_manifest
from selfdraft.runtime.bundle import open_bundle


@pytest.fixture
def bundle(tiny: ModuleType, bundle_files: ModuleType, tmp_path: Path) -> Path:
    path: Path = bundle_files.write_bundle(tmp_path / "bundle", tiny.manifest(tiny.model_spec()))
    return path


def test_untouched_bundle_opens(bundle: Path) -> None:
    opened = open_bundle(bundle)
    assert opened.manifest.source.name == "tiny"
    assert opened.file("backbone.onnx").read_bytes() == b"graph"


def test_engines_built_on_a_device_are_no_part_of_the_manifest(bundle: Path) -> None:
    (bundle / "engines" / "orin").mkdir(parents=True)
    (bundle / "engines" / "orin" / "backbone.plan").write_bytes(b"plan")
    open_bundle(bundle)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda b: (b / "tokenizer.json").unlink(), r"tokenizer\.json is missing"),
    "extra": (lambda b: (b / "notes.txt").touch(), r"notes\.txt is not listed in manifest\.json"),
    "extra in a folder": (
        lambda b: ((b / "x").mkdir(), (b / "x" / "y.bin").touch()),
        r"x/y\.bin is not listed",
    ),
    "truncated": (
        lambda b: (b / "weights.safetensors").write_bytes(b"weigh"),
        r"weights\.safetensors has 5 bytes, the manifest says 7",
    ),
    "changed": (
        lambda b: (b / "weights.safetensors").write_bytes(b"wEights"),
        r"weights\.safetensors has SHA-256 \w{64}, the manifest says \w{64}",
    ),
    "folder instead of a file": (
        lambda b: ((b / "tokenizer.json").unlink(), (b / "tokenizer.json").mkdir()),
        r"tokenizer\.json is missing",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_with_its_exact_mismatch(bundle: Path, damage: str) -> None:
    spoil, match = DAMAGES[damage]
    spoil(bundle)
    with pytest.raises(BundleError, match=match) as caught:
        open_bundle(bundle)
    assert "\n" not in caught.value.problem
    assert f"selfdraft export CHECKPOINT -o {bundle}" in caught.value.hint
    assert caught.value.exit_code == 3


def test_file_that_cannot_be_read_is_named(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("selfdraft.runtime.bundle.file_sha256", refuse)
    with pytest.raises(BundleError, match=r"backbone\.onnx cannot be read: Permission denied"):
        open_bundle(bundle)


def test_hashes_can_be_left_unchecked(bundle: Path) -> None:
    (bundle / "weights.safetensors").write_bytes(b"wEights")
    open_bundle(bundle, check_hashes=False)
    (bundle / "weights.safetensors").write_bytes(b"longer than before")
    with pytest.raises(BundleError, match="18 bytes"):
        open_bundle(bundle, check_hashes=False)


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/../../b", "a\\..\\b", "C:evil", "", ".", "a/./b"]
)
def test_file_names_that_leave_the_bundle_are_refused(
    bundle: Path, bundle_files: ModuleType, name: str
) -> None:
    manifest = load_manifest(bundle)
    files = manifest.files | {name: FileSpec(bytes=0, sha256="")}
    bundle_files.write_manifest(bundle, dataclasses.replace(manifest, files=files))
    with pytest.raises(BundleError, match="names a file outside"):
        open_bundle(bundle)


def test_link_that_leaves_the_bundle_is_refused(bundle: Path) -> None:
    outside = bundle.parent / "outside.bin"
    outside.write_bytes(b"weights")
    (bundle / "weights.safetensors").unlink()
    (bundle / "weights.safetensors").symlink_to(outside)
    with pytest.raises(BundleError, match="is a link that leaves the bundle"):
        open_bundle(bundle)


def test_file_that_is_used_but_not_listed_is_refused(
    bundle: Path, bundle_files: ModuleType
) -> None:
    manifest = load_manifest(bundle)
    files = {name: spec for name, spec in manifest.files.items() if name != "tokenizer.json"}
    bundle_files.write_manifest(bundle, dataclasses.replace(manifest, files=files))
    with pytest.raises(BundleError, match=r"uses tokenizer\.json but does not list it"):
        open_bundle(bundle)


def test_folder_without_a_manifest_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is not a bundle"):
        open_bundle(tmp_path)
