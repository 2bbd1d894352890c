"""The peer runs the same model as we do (needs the ``bench`` extra)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.artifacts import Artifacts
from benchmarks.engines import open_backend
from benchmarks.make_checkpoint import Qwen3Geometry
from selfdraft.runtime.backend import Step

PROMPT = np.random.default_rng(1).integers(599, size=40)


@pytest.fixture
def made(tiny: Artifacts) -> Artifacts:
    pytest.importorskip("onnxruntime_genai", reason="the bench extra is not installed")
    return tiny


def our_logits(made: Artifacts) -> np.ndarray[Any, Any]:
    backend = open_backend(made.bundle(mtp=False, weights="int4"), threads=1)
    states = backend.allocate(batch=1, capacity=128)
    length = np.array([len(PROMPT)])
    step = Step(
        past_len=np.zeros(1, np.int64),
        row_count=length,
        attend_all=np.ones(1, np.int64),
        row_index=(length - 1).reshape(1, 1),
    )
    output = backend.run_backbone(states, step, PROMPT.reshape(1, -1))
    return backend.read_rows(output.logits, [(0, 0)])[0].copy()


@pytest.mark.slow
def test_both_sides_compute_the_same_model_up_to_quantisation(made: Artifacts) -> None:
    from benchmarks.peer_genai import GenaiLoop

    peer = GenaiLoop(made.peer_model(), length=len(PROMPT), context_length=128, threads=1)
    peer.restart(PROMPT)
    theirs = peer.logits()
    assert np.corrcoef(our_logits(made), theirs)[0, 1] > 0.95


@pytest.mark.slow
def test_the_peers_loop_repeats_its_block_after_a_rewind(made: Artifacts) -> None:
    from benchmarks.peer_genai import GenaiLoop

    peer = GenaiLoop(made.peer_model(), length=12, context_length=64, threads=1)
    blocks = []
    for _ in range(2):
        peer.prepare()
        assert [peer.step() for _ in range(6)] == [1] * 6
        blocks.append(peer.tokens)
    assert blocks[0] == blocks[1]
    assert len(blocks[0]) == 12 + 6


@pytest.mark.slow
def test_the_peers_graph_appends_in_place(made: Artifacts, tiny_geometry: Qwen3Geometry) -> None:
    from benchmarks.peer_genai import GenaiGraph

    peer = GenaiGraph(made.peer_model(), length=20, capacity=128, threads=1)
    before = [cache.copy() for cache in peer.caches]
    peer.step()
    changed = [
        set(np.flatnonzero((new != old).any(axis=(0, 1, 3))).tolist())
        for new, old in zip(peer.caches, before, strict=True)
    ]
    assert len(changed) == 2 * tiny_geometry.layers
    assert all(slots == {19} for slots in changed)
