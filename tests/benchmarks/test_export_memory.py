from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.export_memory import measure, write_synthetic
from benchmarks.synthetic_models import MODELS
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.families import read_model


@pytest.mark.parametrize("name", [name for name in MODELS if name != "tiny"])
def test_geometry_of_a_real_model_is_read_from_shapes(tmp_path: Path, name: str) -> None:
    small = replace(MODELS[name], hidden=32, layers=4, ffn=48, vocab=600, head_dim=16)
    stored = write_synthetic(tmp_path / "c", small)
    checkpoint = Checkpoint.open(tmp_path / "c")
    spec = read_model(checkpoint).spec
    assert checkpoint.num_bytes == stored
    assert (spec.num_heads, spec.num_kv_heads) == (small.heads, small.kv_heads)
    assert spec.mtp is not None and spec.tied_head == small.tied


def test_weights_are_finite_and_as_large_as_real_ones(tmp_path: Path) -> None:
    write_synthetic(tmp_path / "c", MODELS["tiny"])
    table = Checkpoint.open(tmp_path / "c").read("model.embed_tokens.weight")
    assert np.isfinite(table).all()
    assert 1e-3 < np.abs(table).mean() < 0.1 and np.unique(table).size > 500


@pytest.mark.parametrize(("name", "least", "most"), [("mimo-7b", 15, 16), ("qwen3.5-4b", 8.5, 9)])
def test_model_is_about_as_large_as_the_published_one(name: str, least: float, most: float) -> None:
    size = sum(int(np.prod(shape)) * 2 for _, shape in MODELS[name].shapes())
    assert least < size / 1e9 < most


@pytest.mark.slow
def test_peak_of_an_export_is_its_largest_tensor_and_a_constant(tmp_path: Path) -> None:
    """One table of half a gigabyte in an otherwise small model; beside it, torch and ONNX."""
    large = replace(MODELS["tiny"], hidden=1024, vocab=262_144, tied=True)
    found = measure(tmp_path / "large", large, int4_block=64, target="cpu")
    assert found["largest_tensor_bytes"] == 2**29
    assert found["peak_rss_gib"] <= 0.5 + 1.5
    small = measure(tmp_path / "small", replace(large, vocab=1024), int4_block=64, target="cpu")
    grown = found["peak_rss_gib"] - small["peak_rss_gib"]
    assert grown <= 1.25 * 0.5, (found, small)
