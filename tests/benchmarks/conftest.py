"""A model of a few thousand parameters in place of the 125 M one, exported once."""

from __future__ import annotations

import pytest

from benchmarks.artifacts import Artifacts
from benchmarks.make_checkpoint import Qwen3Geometry


@pytest.fixture(scope="session")
def tiny_geometry() -> Qwen3Geometry:
    return Qwen3Geometry(
        hidden=128, layers=2, heads=4, kv_heads=2, head_dim=32, ffn=192, vocab=600, context=131_072
    )


@pytest.fixture(scope="session")
def tiny(tiny_geometry: Qwen3Geometry, tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    return Artifacts(folder=tmp_path_factory.mktemp("bench"), geometry=tiny_geometry)
