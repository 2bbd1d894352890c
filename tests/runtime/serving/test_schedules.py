"""Whatever joins, leaves or gives up beside it, a request has the tokens that it has alone."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import support.tiny_model as tiny_models
from support.random_drafts import RandomDrafts
from support.scripted_backend import ScriptedBackend
from support.serving import Alone, check, requests, run_schedule

from selfdraft.runtime.adaptive.joint import JointCosts, JointDrafts
from selfdraft.runtime.adaptive.policy import StepPlan
from selfdraft.runtime.backend import Step
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.serving.options import ServingOptions
from selfdraft.runtime.serving.scheduler import Scheduler
from selfdraft.runtime.telemetry.meter import Telemetry

CONTEXT, SPARSE_CONTEXT = 96, 900
"""The second one reaches beyond what a sparse layer attends to."""
QUICK, ALL, ALL_SPARSE = 24, 500, 60


class RandomDepths:
    """Any number of drafts for each slot of each step; rests among them, and requests given up."""

    when_drawn = 1

    def __init__(self, most: int, seed: int) -> None:
        self.most, self.clock = most, time.perf_counter
        self._random = random.Random(seed)
        self._given_up: set[int] = set()

    def begin(self, slot: int) -> None:
        self._given_up.discard(slot)
        if self._random.random() < 0.2:
            self._given_up.add(slot)

    def plan(self, slots: Sequence[int], *, width: int) -> StepPlan:
        if self._random.random() < 0.05:
            self._given_up.add(self._random.choice(slots))
        if self._random.random() < 0.4:
            return StepPlan(0, self._random.random() < 0.2, given_up=self._given_up)
        depths = {slot: self._random.randint(0, self.most) for slot in slots}
        return StepPlan(max(depths.values()), True, depths, self._given_up)

    def note_chain(self, slot: int, accepted: int, *, rejected: bool) -> None:
        pass

    def note_step(self, drafts: int, seconds: float) -> None:
        pass


def policy(rng: random.Random, most: int) -> Any:
    """A policy of any kind: auto among them, on costs that it takes for true."""
    seed = rng.random()
    kind = rng.choice(["auto", "auto", "depths", "alike", "fixed"])
    if kind == "auto":
        widths = {1: rng.uniform(0.01, 0.2), 4: rng.uniform(0.05, 0.5)}
        return JointDrafts(
            JointCosts({w: [1 + each * k for k in range(most + 1)] for w, each in widths.items()})
        )
    if kind == "depths":
        return RandomDepths(most, int(seed * 1e6))
    return RandomDrafts(most, seed=int(seed * 1e6)) if kind == "alike" else rng.randint(0, most)


@cache
def tiny() -> Any:
    return tiny_models.backend(context_length=CONTEXT)


def serve(
    engine: Any, seed: int, alone: Alone, *, vocab_size: int = 16, context: int = CONTEXT
) -> None:
    """One random schedule, checked."""
    rng = random.Random(seed)
    loop = DecodeLoop(
        engine,
        batch=rng.choice([1, 2, 3, 4, 5]),
        drafts=policy(rng, 3),
        context_length=context,
        prefill_rows=rng.choice([1, 5, 16, 64]),
    )
    options = ServingOptions(target_gap_ms=rng.choice([0.01, 5.0, 1000.0]))
    scheduler = Scheduler(loop, options)
    for _ in range(2):  # the second time caches hold what the first has left
        asked = requests(rng, rng.randint(1, 6), vocab_size=vocab_size, context=context)
        check(run_schedule(scheduler, asked, rng), alone)
        assert not any(loop.is_busy(slot) for slot in range(loop.batch))


@pytest.mark.parametrize("seed", range(QUICK))
def test_requests_have_the_tokens_they_have_alone(seed: int) -> None:
    serve(tiny(), seed, Alone(tiny(), context_length=CONTEXT))


@pytest.mark.slow
def test_500_random_schedules_change_no_token() -> None:
    alone = Alone(tiny(), context_length=CONTEXT)
    for seed in range(ALL):
        serve(tiny(), seed, alone)


class DraftsForNobody(RandomDepths):
    """Asks twice for drafts of the slots alone that it gives up, then of the first one too, and so on."""

    steps = 0

    def plan(self, slots: Sequence[int], *, width: int) -> StepPlan:
        self.steps += 1
        depths = {slot: int(slot != slots[0] or self.steps % 3 == 0) for slot in slots}
        return StepPlan(max(depths.values()), True, depths, slots[1:])


def test_rows_of_a_slot_without_drafts_wait_while_others_are_asked_for_some() -> None:
    loop = DecodeLoop(tiny(), batch=2, drafts=DraftsForNobody(1, seed=0), context_length=CONTEXT)
    asked = [Request(prompt_ids=(0, 5, slot), max_tokens=12) for slot in range(2)]
    loop.begin(dict(enumerate(asked)))
    while loop.active:
        loop.step()
    alone = Alone(tiny(), context_length=CONTEXT)
    assert [list(loop.result(slot).tokens) for slot in range(2)] == [alone(one) for one in asked]


class NarrowScripted(ScriptedBackend):
    """Runs passes over a part of the slots."""

    def narrow(self, states: Any, *, first: int, count: int) -> Any:
        part = slice(first, first + count)
        return dataclasses.replace(
            states, batch=count, backbone=states.backbone[part], mtp=states.mtp[part]
        )


@pytest.mark.parametrize("make", [ScriptedBackend, NarrowScripted])
@pytest.mark.parametrize("seed", range(8))
def test_caches_hold_their_own_text_only(seed: int, make: type[ScriptedBackend]) -> None:
    """The scripted backend refuses a row whose cache is not the text before it, the head's too."""
    scripted: Any = make(
        tiny_models, lambda h: (3 * h[-1] + len(h)) % 16, errors=0.3, context_length=CONTEXT
    )
    serve(scripted, seed, Alone(scripted, context_length=CONTEXT))


def test_a_pass_over_some_slots_touches_no_other_and_gives_the_same_bits() -> None:
    backend = tiny()
    whole, apart = (backend.allocate(batch=4, capacity=128) for _ in range(2))
    ids = np.arange(12).reshape(4, 3) % 16
    full = backend.run_backbone(whole, _step(4), ids)
    part = backend.run_backbone(backend.narrow(apart, first=1, count=2), _step(2), ids[1:3])
    assert np.array_equal(part.logits, full.logits[1:3])
    for one, other in zip(whole.backbone, apart.backbone, strict=True):
        for name in one:
            assert np.array_equal(one[name][1:3], other[name][1:3]) and one[name][1:3].any()
            assert not other[name][[0, 3]].any()


def test_the_range_of_slots_is_the_smallest_that_holds_those_at_work() -> None:
    loop = DecodeLoop(tiny(), batch=6, drafts=0)
    ranges = loop._ranges
    assert [(r.first, r.width) for r in map(ranges.covering, [{2}, {2, 4}, {0, 5}])] == [
        (2, 1),
        (2, 3),
        (0, 6),
    ]
    scripted: Any = ScriptedBackend(tiny_models, lambda _: 1)
    assert DecodeLoop(scripted, batch=6)._ranges.covering({2}).width == 6


def test_telemetry_counts_each_request_under_its_own_task() -> None:
    telemetry = Telemetry()
    loop = DecodeLoop(tiny(), batch=3, drafts=2, telemetry=telemetry)
    scheduler = Scheduler(loop)
    asked = [
        dataclasses.replace(one, task="ab"[index % 2], max_tokens=20, stop_token_ids=())
        for index, one in enumerate(
            requests(random.Random(1), 7, vocab_size=16, context=CONTEXT - 20)
        )
    ]
    clients = run_schedule(scheduler, asked, random.Random(2), cancels=0.0)
    counted = telemetry.snapshot().by_task
    for task in "ab":
        own = [client for client in clients if client.request.task == task]
        results = [client.end.result for client in own if client.end and client.end.result]
        assert counted[task].tokens == sum(len(client.tokens) - 1 for client in own)
        assert counted[task].steps == sum(result.steps for result in results)


def _step(batch: int) -> Step:
    return Step(
        past_len=np.zeros(batch, np.int64),
        row_count=np.full(batch, 3),
        attend_all=np.ones(batch, np.int64),
        row_index=np.full((batch, 1), 2),
    )


@pytest.fixture(scope="module", params=["dense", pytest.param("sparse", marks=pytest.mark.slow)])
def ort(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny exported bundle on ONNX Runtime."""
    pytest.importorskip("torch", reason="the exporter: pip install 'selfdraft[export]'")
    from support.checkpoints import write_checkpoint
    from support.sparse_bundle import export_sparse

    from selfdraft.export.bundle import export_bundle
    from selfdraft.export.options import ExportOptions
    from selfdraft.manifest import load_manifest
    from selfdraft.runtime.ort import OrtBackend

    folder: Path = tmp_path_factory.mktemp("served")
    if request.param == "sparse":
        bundle = export_sparse(folder)
    else:
        bundle = folder / "bundle"
        checkpoint = write_checkpoint(folder / "checkpoint", "mimo", context=1024)
        export_bundle(checkpoint, bundle, ExportOptions())
    return OrtBackend(bundle, load_manifest(bundle), threads=1)


@pytest.mark.parametrize("seed", range(8))
def test_requests_on_onnx_runtime_have_the_tokens_they_have_alone(ort: Any, seed: int) -> None:
    _serve_ort(ort, [seed])


@pytest.mark.slow
def test_500_random_schedules_change_no_token_on_onnx_runtime(ort: Any) -> None:
    _serve_ort(ort, range(ALL_SPARSE if ort.manifest.attention else ALL))


def _serve_ort(engine: Any, seeds: Iterable[int]) -> None:
    context = SPARSE_CONTEXT if engine.manifest.attention else CONTEXT
    alone = Alone(engine, context_length=context)
    vocab_size = engine.manifest.model.vocab_size
    for seed in seeds:
        serve(engine, seed, alone, vocab_size=vocab_size, context=context)
