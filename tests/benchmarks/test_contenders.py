"""Our contenders run the steps that they are named for."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.artifacts import Artifacts
from benchmarks.engines import EngineSteps, LoopSteps, TimedEngine, open_backend
from selfdraft.runtime.ort import OrtBackend


@pytest.fixture(scope="module")
def backend(tiny: Artifacts) -> OrtBackend:
    return open_backend(tiny.bundle(mtp=True, weights="fp32"), threads=1)


def test_an_engine_step_writes_one_slot_and_leaves_the_rest(backend: OrtBackend) -> None:
    steps = EngineSteps(backend, length=20, capacity=128)
    before = {name: t.array.copy() for name, t in steps.states.tensors.items()}
    steps.step()
    changed = {
        name: set(np.flatnonzero((t.array != before[name]).any(axis=(0, 1, 3))).tolist())
        for name, t in steps.states.tensors.items()
        if not name.startswith("mtp")
    }
    assert changed
    assert all(slots == {19} for slots in changed.values())
    assert all(np.count_nonzero(array[:, :, :20]) for array in before.values())


def test_a_loop_goes_back_to_its_prompt_and_repeats_its_block(backend: OrtBackend) -> None:
    loop = LoopSteps(backend, length=12, context_length=64)
    blocks = []
    for _ in range(2):
        loop.prepare()
        assert [loop.step() for _ in range(5)] == [1] * 5
        blocks.append(loop.tokens)
    assert blocks[0] == blocks[1]
    assert len(blocks[0]) == 12 + 1 + 5


def test_forced_acceptance_delivers_every_draft_at_rate_one(backend: OrtBackend) -> None:
    loop = LoopSteps(backend, length=12, context_length=128, drafts=2, forced_acceptance=(1.0, 1.0))
    loop.prepare()
    assert [loop.step() for _ in range(6)] == [3] * 6


def test_a_timed_engine_adds_up_the_passes_of_a_step(backend: OrtBackend) -> None:
    ticks = iter(range(1000))
    engine = TimedEngine(backend, lambda: float(next(ticks)))
    loop = LoopSteps(engine, length=12, context_length=64, drafts=2, forced_acceptance=(0.0,))
    loop.prepare()
    engine.engine_s = 0.0
    loop.step()
    assert engine.engine_s == 3.0  # two links of the head and one pass of the backbone
