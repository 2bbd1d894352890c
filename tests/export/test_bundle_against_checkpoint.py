"""Bundles compute what their checkpoints say, by an implementation that shares nothing."""

from __future__ import annotations

from typing import Any

import pytest
from support.against_checkpoint import compare
from support.checkpoints import write_checkpoint
from support.hub_model import HubModel
from support.numerics import FP64_AGAINST_FP32

from selfdraft.export.bundle import export_bundle
from selfdraft.export.options import ExportOptions
from selfdraft.runtime.reference import ReferenceBackend

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [1.5 + 0.4 * i for i in range(8)],
    "original_max_position_embeddings": 128,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "mimo": {"family": "mimo", "mtp": "mimo", "config": {"rope_theta": 640_000.0}},
    "mimo_qwen_head": {"family": "mimo", "mtp": "qwen", "config": {"rms_norm_eps": 1e-3}},
    "qwen2": {"family": "qwen2", "mtp": "qwen", "kv_heads": 4},
    "qwen2_mimo_head_tied": {"family": "qwen2", "mtp": "mimo", "tied": True},
    "qwen3_wide_heads": {"family": "qwen3", "mtp": "qwen", "head_dim": 32, "heads": 6},
    "qwen3_tied": {"family": "qwen3", "mtp": "mimo", "tied": True, "kv_heads": 1},
    "qwen3_odd_sizes": {"family": "qwen3", "head_dim": 10, "hidden": 72, "intermediate": 50},
    "llama3": {"family": "llama", "mtp": "qwen", "config": {"rope_scaling": LLAMA3}},
    "llama_linear": {
        "family": "llama",
        "mtp": "mimo",
        "config": {"rope_scaling": {"rope_type": "linear", "factor": 3.0}},
    },
    "minicpm_longrope": {
        "family": "minicpm",
        "mtp": "deepseek",
        "kv_heads": 1,
        "config": {"rope_scaling": LONGROPE},
    },
    "glm4": {"family": "glm4", "mtp": "deepseek", "heads": 6},
    "glm_ocr": {"family": "glm_ocr", "mtp": "deepseek", "prefix": "model.language_model."},
    "qwen3_inside": {"family": "qwen3", "mtp": "qwen", "prefix": "language_model."},
    "llama_deepseek_head": {"family": "llama", "mtp": "deepseek", "head_dim": 8},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_reference_of_a_bundle_equals_the_checkpoint(tmp_path, fake_graphs, variant) -> None:
    source = write_checkpoint(tmp_path / "c", seed=4, **VARIANTS[variant])
    export_bundle(source, tmp_path / "bundle", ExportOptions())
    backend = ReferenceBackend.from_bundle(tmp_path / "bundle")
    # fp64 on both sides, weights exact; a folded factor is one rounding to fp32.
    compare(backend, source, relative=2e-7 if variant.startswith("minicpm") else 1e-11)


@pytest.mark.parametrize(
    "variant",
    ["mimo", *(pytest.param(v, marks=pytest.mark.slow) for v in VARIANTS if v != "mimo")],
)
def test_graphs_of_a_bundle_equal_the_checkpoint(tmp_path, variant) -> None:
    pytest.importorskip("onnxruntime")
    from selfdraft.runtime.ort import OrtBackend

    source = write_checkpoint(tmp_path / "c", seed=4, **VARIANTS[variant])
    report = export_bundle(source, tmp_path / "bundle", ExportOptions())
    backend = OrtBackend(tmp_path / "bundle", report.manifest)
    compare(backend, source, relative=FP64_AGAINST_FP32)


def test_wrong_order_of_query_and_key_is_noticed(tmp_path, fake_graphs) -> None:
    """The comparison has teeth: a checkpoint with two swapped tensors differs."""
    options: dict[str, Any] = {"family": "llama", "kv_heads": 4, "seed": 4}
    source = write_checkpoint(tmp_path / "c", **options)
    tensors = HubModel(source).tensors
    names = [f"model.layers.0.self_attn.{name}_proj.weight" for name in ("q", "k")]
    swapped = {names[0]: tensors[names[1]], names[1]: tensors[names[0]]}
    other = write_checkpoint(tmp_path / "d", extra=swapped, **options)
    export_bundle(other, tmp_path / "bundle", ExportOptions())
    backend = ReferenceBackend.from_bundle(tmp_path / "bundle")
    with pytest.raises(AssertionError, match="logits"):
        compare(backend, source, relative=1e-3)
