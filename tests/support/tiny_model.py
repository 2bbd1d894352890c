"""Tiny models built in code: manifests, random weights, and reference backends on them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.manifest import (
    SCHEMA_VERSION,
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
from selfdraft.runtime.reference import ReferenceBackend
from selfdraft.runtime.weights import expected_shapes

Weights = dict[str, NDArray[Any]]
DEFAULT_MTP = MtpSpec(concat="hidden_first", tap="pre_norm")
make: Any = ReferenceBackend
"""Makes a backend of a manifest, weights and embedding; a copy of this module may have another one."""


def model_spec(**changes: Any) -> ModelSpec:
    """Two layers, vocabulary 64, grouped-query attention with two kv heads."""
    values: dict[str, Any] = {
        "family": "tiny",
        "vocab_size": 64,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "rms_norm_eps": 1e-6,
        "qkv_bias": True,
        "qk_norm": False,
        "tied_head": False,
        "rope": RopeSpec(inv_freq=(1.0, 0.3, 0.1, 0.03)),
        "mtp": DEFAULT_MTP,
    }
    return ModelSpec(**values | changes)


def manifest(
    model: ModelSpec,
    *,
    context_length: int = 256,
    candidates: int = 16,
    prefill_rows: int = 16,
    eos_ids: tuple[int, ...] = (),
    sampling: SamplingDefaults | None = None,
) -> Manifest:
    """A manifest around ``model``; it names no graph files."""
    return Manifest(
        schema_version=SCHEMA_VERSION,
        selfdraft_version="test",
        target="cpu",
        model=model,
        graphs={},
        precision=Precision(weights="fp32", int4_block=None, activations="fp32", kv="fp32"),
        limits=Limits(
            context_length=context_length, candidates=candidates, prefill_rows=prefill_rows
        ),
        text=TextSpec(tokenizer="tokenizer.json", chat_template=None, eos_ids=eos_ids, bos_id=None),
        sampling=sampling or SamplingDefaults(),
        source=SourceSpec(
            name="tiny",
            architecture="tiny",
            license=None,
            model_card=None,
            config_sha256="",
            ignored_tensors={},
        ),
        files={},
    )


def random_weights(model: ModelSpec, seed: int = 0) -> tuple[Weights, NDArray[np.float64]]:
    """Weights and embedding scaled so that greedy text has variety."""
    rng = np.random.default_rng(seed)
    weights: Weights = {}
    for name, shape in expected_shapes(model).items():
        if name == "mtp.draft_ids":
            chosen = rng.choice(model.vocab_size, size=shape[0], replace=False)
            weights[name] = np.sort(chosen).astype(np.int64)
        elif len(shape) == 1 and "bias" not in name:
            weights[name] = 1.0 + 0.1 * rng.standard_normal(shape)
        else:
            weights[name] = rng.standard_normal(shape) * 1.5 / np.sqrt(shape[0])
    return weights, rng.standard_normal((model.vocab_size, model.hidden_size))


def backend(model: ModelSpec | None = None, *, seed: int = 0, **limits: Any) -> ReferenceBackend:
    """A reference backend with random weights; ``limits`` go to ``manifest``."""
    model = model or model_spec()
    weights, embedding = random_weights(model, seed)
    made: ReferenceBackend = make(manifest(model, **limits), weights, embedding)
    return made
