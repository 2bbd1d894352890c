"""Contenders of the long-context benchmark run on the caches, and by the rules, they are named for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import long_context
from benchmarks.artifacts import Artifacts
from benchmarks.engines import open_backend
from benchmarks.filled_loop import FilledCache, FilledLoop
from benchmarks.group_query import GroupQuerySteps
from selfdraft.runtime.ort import OrtBackend

LENGTH = 4_500


@pytest.fixture(scope="module")
def models(tiny: Artifacts) -> dict[str, Path]:
    return {
        "sparse": tiny.bundle(mtp=False, weights="fp32", sparse=True),
        "dense": tiny.bundle(mtp=False, weights="fp32"),
    }


@pytest.fixture(scope="module")
def sparse(models: dict[str, Path]) -> OrtBackend:
    return open_backend(models["sparse"], threads=1)


@pytest.fixture
def filled(sparse: OrtBackend) -> FilledCache:
    return FilledCache(sparse, length=LENGTH, room=8)


def test_group_query_attends_to_the_whole_cache_and_writes_one_slot(
    sparse: OrtBackend, filled: FilledCache
) -> None:
    model = sparse.manifest.model
    keys, values = filled.layers()[0]
    before = keys.array.copy()
    steps = GroupQuerySteps(model, filled.layers(), length=LENGTH, threads=1)
    steps.step()
    changed = np.flatnonzero((keys.array != before).any(axis=(0, 1, 3)))
    assert changed.tolist() == [LENGTH - 1]
    d = model.head_dim
    shape = (1, 1, model.num_heads * d)
    query = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    expected = []
    for head in range(model.num_heads):
        kv = head // (model.num_heads // model.num_kv_heads)
        scores = keys.array[0, kv, :LENGTH] @ query[0, 0, head * d : (head + 1) * d] / d**0.5
        weights = np.exp(scores - scores.max())
        expected.append(weights @ values.array[0, kv, :LENGTH] / weights.sum())
    found = steps.outputs[0].array.reshape(model.num_heads, d)
    np.testing.assert_allclose(found, np.array(expected), rtol=1e-3, atol=1e-4)


def test_loops_share_one_cache_and_differ_in_what_they_read(
    models: dict[str, Path], sparse: OrtBackend, filled: FilledCache
) -> None:
    before = filled.states.tensors["backbone.k_cache_0"].array[:, :, :LENGTH].copy()
    other = open_backend(models["dense"], threads=1)
    loops = {
        "sparse": FilledLoop(sparse, filled, attention="sparse"),
        "all": FilledLoop(sparse, filled, attention="dense"),
        "dense": FilledLoop(other, filled, attention="dense"),
    }
    read: dict[str, Any] = {}
    for _ in range(2):
        for name, loop in loops.items():
            loop.prepare()
            assert [loop.step() for _ in range(3)] == [1, 1, 1]
            read[name] = long_context._blocks(loop)
    assert read == {"sparse": [64, 64], "all": [71, 71], "dense": []}
    after = filled.states.tensors["backbone.k_cache_0"].array[:, :, :LENGTH]
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize(
    ("limits", "met"),
    [({}, None), ({"most": 1.6}, True), ({"most": 1.4}, False), ({"least": 1.6}, False)],
)
def test_a_ratio_is_judged_by_its_limit(limits: dict[str, float], met: bool | None) -> None:
    found = long_context._ratio("x", 3.0, 2.0, **limits)
    assert (found["ratio"], found["met"]) == (1.5, met)
    assert found["figure"] == "1.50x (3.00 / 2.00 ms)" and found["synthetic"]
