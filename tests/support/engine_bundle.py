"""Bundles of tiny models for the TensorRT backend, built and run by the double.

Their graphs are those of the ``cpu`` target, in fp32: what is tested is the backend, not the export.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from support.tiny_graph import stored_places
from support.trt_double.install import Double, installed

from selfdraft.export.bundle import export_bundle
from selfdraft.export.check_variant import write_check_variant
from selfdraft.export.graph import build_graphs
from selfdraft.export.options import ExportOptions
from selfdraft.manifest import FileSpec, GraphSpec, Manifest, manifest_to_json
from selfdraft.recurrent import STATE_LEN
from selfdraft.runtime.bundle import Bundle, open_bundle
from selfdraft.runtime.trt.backend import TensorRtBackend
from selfdraft.runtime.trt.builder import BuildOptions, build_engines
from selfdraft.runtime.trt.limits import engine_limits
from selfdraft.runtime.trt.sidecar import Board

MOST_SLOTS = 64
"""Of the loop tests: beams are slots."""
DEMO = Path(__file__).parents[2] / "demo" / "checkpoint"


def write_engine_bundle(
    folder: Path,
    manifest: Manifest,
    weights: Mapping[str, NDArray[Any]],
    embedding: NDArray[Any],
) -> Bundle:
    """Weights, embedding, graphs and manifest, as if exported for a board."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {k: v if v.dtype == np.int64 else v.astype(np.float32) for k, v in weights.items()}
    save_file(stored, str(folder / manifest.weights_file))
    save_file({"embedding": embedding.astype(np.float32)}, str(folder / manifest.embedding_file))
    graphs = _write_graphs(folder, manifest)
    files = {path.name: _file(path) for path in sorted(folder.iterdir())}
    graphs = {name: _as_for_a_board(graph) for name, graph in graphs.items()}
    full = dataclasses.replace(manifest, target="orin-jp6", graphs=graphs, files=files)
    (folder / "manifest.json").write_text(manifest_to_json(full), encoding="utf-8")
    return Bundle(path=folder, manifest=full)


_TRACED: dict[str, tuple[dict[str, GraphSpec], dict[str, bytes]]] = {}
"""Graphs by all that they depend on; models that differ in their weights alone share them."""


def _write_graphs(folder: Path, manifest: Manifest) -> dict[str, GraphSpec]:
    kv, candidates = manifest.precision.kv, manifest.limits.candidates
    places = stored_places(folder / manifest.weights_file)
    key = repr((manifest.model, manifest.attention, kv, candidates, places))
    if key not in _TRACED:
        graphs = build_graphs(
            manifest.model,
            places,
            directory=folder,
            candidates=candidates,
            target="cpu",
            attention=manifest.attention,
            kv_dtype="int8" if kv == "int8" else "fp32",
        )
        files = {graph.file: (folder / graph.file).read_bytes() for graph in graphs.values()}
        _TRACED[key] = graphs, files
    graphs, files = _TRACED[key]
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return graphs


def _as_for_a_board(graph: GraphSpec) -> GraphSpec:
    """``graph`` with the states that no plugin writes bound apart."""
    states = tuple(
        dataclasses.replace(state, aliased=state.name != STATE_LEN) for state in graph.states
    )
    return dataclasses.replace(graph, states=states)


def _file(path: Path) -> FileSpec:
    content = path.read_bytes()
    return FileSpec(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def write_plugin_library(path: Path) -> Path:
    """A "library" with the creators of our plugins, as the double reads it."""
    names = ("CachedAttention", "GatedDeltaRule", "Int4MatMul")
    path.write_text("\n".join(["double", *(f"{name} 1 selfdraft" for name in names)]) + "\n")
    return path


def export_orin_demo(folder: Path, **options: Any) -> Bundle:
    """The demo checkpoint for a board, and beside it the check variant that the double runs."""
    export_bundle(DEMO, folder, ExportOptions(target="orin-jp6", **options))
    bundle = open_bundle(folder)
    checked = folder.with_name(f"{folder.name}.check")
    checked.mkdir()
    write_check_variant(folder, bundle.manifest, checked)
    return bundle


def build_bundle(bundle: Bundle, *, batch: int = 4, **limits: Any) -> Path:
    """Build its engines by the double that is installed."""
    return build_engines(
        bundle,
        BuildOptions(
            limits=engine_limits(bundle.manifest.limits, batch=batch, **limits),
            workspace_bytes=1 << 20,
            tactic_bytes=1 << 20,
        ),
        Board(),
        on_stage=lambda stage, done, total: None,
    )


def open_backend(bundle: Bundle, **options: Any) -> TensorRtBackend:
    """The backend on engines that were built before."""
    return TensorRtBackend(bundle.path, bundle.manifest, **options)


class EngineMaker:
    """Makes backends as ``ReferenceBackend(manifest, weights, embedding)`` does, on one double."""

    def __init__(self, double: Double, folder: Path) -> None:
        self.double = double
        self._folder = folder
        self._made: dict[str, TensorRtBackend] = {}

    def __call__(
        self, manifest: Manifest, weights: Mapping[str, NDArray[Any]], embedding: NDArray[Any]
    ) -> TensorRtBackend:
        digest = hashlib.sha256(manifest_to_json(manifest).encode())
        for name in sorted(weights):
            digest.update(np.ascontiguousarray(weights[name]))
        key = digest.hexdigest()
        if key not in self._made:
            bundle = write_engine_bundle(self._folder / key[:16], manifest, weights, embedding)
            rows = manifest.limits.context_length
            with installed(self.double):
                build_bundle(bundle, batch=MOST_SLOTS, prefill_rows=rows)
                self._made[key] = open_backend(bundle)
        return self._made[key]
