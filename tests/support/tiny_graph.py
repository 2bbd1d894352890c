"""Random weights for a small model specification, laid out as a bundle's weights file."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from selfdraft.export.graph import build_graphs, build_module, graph_ops, stored_name
from selfdraft.manifest import (
    SCHEMA_VERSION,
    GraphSpec,
    Limits,
    Manifest,
    ModelSpec,
    MtpSpec,
    Precision,
    RopeSpec,
    SamplingDefaults,
    SourceSpec,
    TextSpec,
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a tensor lies in the weights file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


def tiny_spec(**changes: Any) -> ModelSpec:
    """Two layers, GQA of two, vocabulary 97, MiMo wiring; ``changes`` replace fields."""
    fields: dict[str, Any] = {
        "family": "mimo",
        "vocab_size": 97,
        "hidden_size": 64,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "rms_norm_eps": 1e-6,
        "qkv_bias": True,
        "qk_norm": False,
        "tied_head": False,
        "mtp": MtpSpec(concat="hidden_first", tap="pre_norm"),
    }
    fields.update(changes)
    half = fields["head_dim"] // 2
    fields.setdefault("rope", RopeSpec(inv_freq=tuple(10000.0 ** (-i / half) for i in range(half))))
    return ModelSpec(**fields)


def random_weights(spec: ModelSpec, *, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Every weight of both graphs by stored name."""
    rng = np.random.default_rng(seed)
    weights: dict[str, NDArray[Any]] = {}
    for graph in ("backbone", "mtp") if spec.mtp else ("backbone",):
        for key, parameter in build_module(
            graph, spec, graph_ops(graph, spec, None, kv_dtype="fp32"), candidates=4
        ).named_parameters():
            shape = tuple(parameter.shape)
            if key == "draft_ids":
                ids = np.sort(rng.permutation(spec.vocab_size)[: shape[0]])
                weights[f"{graph}.{key}"] = ids.astype(np.int64)
            elif len(shape) == 1:
                weights[stored_name(graph, key)] = 1 + 0.3 * rng.standard_normal(shape)
            else:
                weights[stored_name(graph, key)] = rng.standard_normal(shape) / shape[0] ** 0.5
    return {k: v if v.dtype == np.int64 else v.astype(np.float32) for k, v in weights.items()}


def write_graphs(
    spec: ModelSpec,
    folder: Path,
    *,
    candidates: int = 8,
    seed: int = 0,
    exact_rows: bool = True,
) -> tuple[dict[str, GraphSpec], dict[str, NDArray[Any]]]:
    """Weights, embedding and both graphs in ``folder``; returns graph specs and weights."""
    weights = random_weights(spec, seed=seed)
    path = folder / "weights.safetensors"
    save_file(weights, str(path))
    table = np.random.default_rng(seed + 1).standard_normal((spec.vocab_size, spec.hidden_size))
    save_file({"embedding": table.astype(np.float32)}, str(folder / "embedding.safetensors"))
    graphs = build_graphs(
        spec,
        stored_places(path),
        directory=folder,
        candidates=candidates,
        target="cpu",
        exact_rows=exact_rows,
    )
    return graphs, weights


def stored_places(path: Path) -> dict[str, Place]:
    """Absolute place of every tensor of a safetensors file."""
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    places = {}
    for name, entry in json.loads(raw[8 : 8 + size]).items():
        if name != "__metadata__":
            start, end = (8 + size + offset for offset in entry["data_offsets"])
            places[name] = Place(
                dtype=entry["dtype"], shape=tuple(entry["shape"]), offset=start, length=end - start
            )
    return places


def tiny_manifest(spec: ModelSpec, graphs: dict[str, GraphSpec], *, context: int = 256) -> Manifest:
    """A manifest over graphs written by ``write_graphs`` (no text files, no hashes)."""
    return Manifest(
        schema_version=SCHEMA_VERSION,
        selfdraft_version="test",
        target="cpu",
        model=spec,
        graphs=graphs,
        precision=Precision(weights="fp32", int4_block=None, activations="fp32", kv="fp32"),
        limits=Limits(context_length=context, candidates=8, prefill_rows=16),
        text=TextSpec(tokenizer="tokenizer.json", chat_template=None, eos_ids=(), bos_id=None),
        sampling=SamplingDefaults(),
        source=SourceSpec(
            name="random",
            architecture="test",
            license=None,
            model_card=None,
            config_sha256="0" * 64,
            ignored_tensors={},
        ),
        files={},
    )
