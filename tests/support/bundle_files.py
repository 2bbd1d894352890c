"""Bundles on disk, with sizes and hashes that fit; file contents are placeholders by default."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path

from selfdraft.manifest import FileSpec, GraphSpec, Manifest, manifest_to_json

Writer = Callable[[Path], object]


def write_bundle(
    path: Path,
    manifest: Manifest,
    *,
    weights: Writer | None = None,
    embedding: Writer | None = None,
) -> Path:
    """Write ``manifest`` and the files it uses to ``path``; returns ``path``."""
    path.mkdir(parents=True)
    graph = GraphSpec(file="backbone.onnx", inputs=(), outputs=(), taps=(), states=())
    writers: dict[str, Writer] = {
        "backbone.onnx": lambda file: file.write_bytes(b"graph"),
        "tokenizer.json": lambda file: file.write_bytes(b"tokenizer"),
        manifest.weights_file: weights or (lambda file: file.write_bytes(b"weights")),
        manifest.embedding_file: embedding or (lambda file: file.write_bytes(b"embedding")),
    }
    files = {}
    for name, write in writers.items():
        write(path / name)
        content = (path / name).read_bytes()
        files[name] = FileSpec(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    write_manifest(path, dataclasses.replace(manifest, graphs={"backbone": graph}, files=files))
    return path


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Replace the manifest of the bundle at ``path``."""
    (path / "manifest.json").write_text(manifest_to_json(manifest), encoding="utf-8")
