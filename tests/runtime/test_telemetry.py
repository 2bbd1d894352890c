"""Scripted streams of steps on a fake clock: counts by window, task, position and depth, exactly."""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict
from types import ModuleType
from typing import Any

import pytest
from support.clocked_backend import Clock
from support.scripted_backend import ScriptedBackend

from selfdraft.errors import ConfigError
from selfdraft.runtime.generation import Generation
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.request_json import request_from_json, request_to_json
from selfdraft.runtime.telemetry.meter import MOST_TASKS, Telemetry
from selfdraft.runtime.telemetry.prometheus import prometheus_text
from selfdraft.runtime.thinking import Thinking, ThinkTags
from selfdraft.runtime.thinking_record import ThinkingRecord


def _telemetry(clock: Clock, **options: Any) -> Telemetry:
    return Telemetry(clock=clock, **options)


def _step(telemetry: Telemetry, *, task: str = "default", **step: int) -> None:
    given = {"position": 0, "drafted": 1, "accepted": 1} | step
    given.setdefault("tokens", given["accepted"] + 1)
    telemetry.note_step(telemetry.labels(task, "greedy", 0.0), **given)


def test_drafts_behind_the_first_rejection_count_as_drafted() -> None:
    telemetry = _telemetry(Clock())
    for accepted in (3, 3, 1, 0):
        _step(telemetry, drafted=3, accepted=accepted)
    total = telemetry.snapshot().total
    assert total.counts.drafted == (4, 4, 4)
    assert total.counts.accepted == (3, 2, 2)
    assert total.acceptance_rate == 7 / 12
    assert total.acceptance_per_position == (0.75, 0.5, 0.5)
    assert total.conditional_per_position == (3 / 4, 2 / 3, 1.0)
    assert total.tokens_per_step == 11 / 4
    assert total.mean_acceptance_length == 1 + 7 / 4


def test_conditional_rates_hold_with_depths_mixed() -> None:
    """Only steps that drafted a second token can say how the second fares."""
    telemetry = _telemetry(Clock())
    for _ in range(10):
        _step(telemetry, drafted=1, accepted=1)
    for accepted in (2, 2, 1, 0):
        _step(telemetry, drafted=2, accepted=accepted)
    total = telemetry.snapshot().total
    assert total.counts.drafted == (14, 4)
    assert total.conditional_per_position == (13 / 14, 2 / 3)


def test_steps_without_drafts_are_no_rate() -> None:
    telemetry = _telemetry(Clock())
    _step(telemetry, drafted=0, accepted=0)
    total = telemetry.snapshot().total
    assert (total.steps, total.drafts, total.tokens) == (1, 0, 1)
    assert total.acceptance_rate is None and total.mean_acceptance_length is None
    assert total.tokens_per_step == 1.0
    _step(telemetry, drafted=1, accepted=1)
    total = telemetry.snapshot().total
    assert total.acceptance_rate == 1.0 and total.tokens_per_step == 1.5
    assert total.mean_acceptance_length == 2.0


def test_window_slides_to_the_second() -> None:
    clock = Clock()
    telemetry = _telemetry(clock, window_s=300.0)
    for minute in range(10):
        clock.now = 60.0 * minute
        _step(telemetry, accepted=minute % 2)
        seen = telemetry.snapshot().total
        # A step that is exactly 300 s old is out.
        assert seen.steps == min(minute + 1, 5)
    clock.now = 540.0 + 299.9
    assert telemetry.snapshot().total.steps == 1
    clock.now = 540.0 + 300.0
    assert telemetry.snapshot().total.steps == 0
    assert telemetry.snapshot().total.acceptance_rate is None
    assert sum(sum(h.steps) for h in telemetry.totals.values()) == 10, "totals stay"


def test_groups_of_a_scripted_stream_equal_a_recount() -> None:
    """Random steps over twenty minutes; after each, every group is counted anew from the list."""
    clock, rng = Clock(), random.Random(4)
    telemetry = _telemetry(clock, window_s=120.0)
    stream: list[tuple[float, str, int, int, int]] = []
    for index in range(600):
        clock.now += rng.expovariate(0.5)
        drafted = rng.randint(0, 3)
        step = (rng.choice(["code", "chat"]), rng.choice([0, 4095, 4096, 70_000]), drafted)
        stream.append((clock.now, *step, rng.randint(0, drafted)))
        task, position, drafted, accepted = stream[-1][1:]
        _step(telemetry, task=task, position=position, drafted=drafted, accepted=accepted)
        if index % 40 == 39:
            _assert_equals_recount(telemetry, stream, clock.now - 120.0)


def _assert_equals_recount(
    telemetry: Telemetry, stream: list[tuple[float, str, int, int, int]], border: float
) -> None:
    snapshot = telemetry.snapshot()
    groups: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for at, task, position, drafted, accepted in stream:
        if at > border:
            label = {0: "0-4K", 4095: "0-4K", 4096: "4K-8K", 70_000: "64K-128K"}[position]
            for group in ("all", task, label, drafted):
                groups[group].append((drafted, accepted))
    found = {
        "all": snapshot.total,
        **snapshot.by_task,
        **snapshot.by_position,
        **snapshot.by_drafts,
    }
    assert set(found) == set(groups)
    for group, steps in groups.items():
        counts = found[group]
        assert counts.steps == len(steps)
        assert counts.tokens == sum(accepted + 1 for _, accepted in steps)
        assert counts.drafts == sum(drafted > 0 for drafted, _ in steps)
        depth = max(drafted for drafted, _ in steps)
        wanted = [sum(drafted > i for drafted, _ in steps) for i in range(depth)]
        assert list(counts.counts.drafted) == wanted
        wanted = [sum(accepted > i for _, accepted in steps) for i in range(depth)]
        assert list(counts.counts.accepted) == wanted


def test_tasks_without_end_share_one_label() -> None:
    telemetry = _telemetry(Clock())
    for index in range(MOST_TASKS + 30):
        _step(telemetry, task=f"task {index}")
    by_task = telemetry.snapshot().by_task
    assert len(by_task) == MOST_TASKS + 1
    assert by_task["other"].steps == 30


def _thought(budget: int, *, triggered: bool = False, violated: bool = False) -> ThinkingRecord:
    return ThinkingRecord(
        budget=budget,
        temperature=0.0,
        thinking_tokens=5,
        forced_tokens=0,
        completing_tokens=0,
        triggered=triggered,
        violated=violated,
        closed=True,
    )


def test_budgets_are_counted_by_level_in_the_window() -> None:
    clock = Clock()
    telemetry = _telemetry(clock, window_s=10.0)
    labels = telemetry.labels("math", "greedy", 0.0)
    telemetry.note_reply(labels, _thought(64, triggered=True))
    clock.now = 5.0
    telemetry.note_reply(labels, _thought(64, violated=True))
    telemetry.note_reply(labels, _thought(0))
    telemetry.note_reply(labels, None)
    low, high = telemetry.snapshot().thinking
    assert (low.budget, low.replies) == (0, 1)
    assert (high.replies, high.triggered, high.violated) == (2, 1, 1)
    clock.now = 10.0
    assert [rate.replies for rate in telemetry.snapshot().thinking] == [1, 1]
    assert telemetry.thinking_totals == {("math", 64): [2, 1, 1], ("math", 0): [1, 0, 0]}


def test_json_of_a_snapshot_has_counts_and_rates_apart() -> None:
    telemetry = _telemetry(Clock())
    _step(telemetry, task="code", position=5000, drafted=2, accepted=1)
    data = telemetry.snapshot().to_json()
    total = data["total"]
    assert total["spec_decode_num_drafts"] == 1
    assert total["spec_decode_num_draft_tokens"] == 2
    assert total["spec_decode_num_accepted_tokens"] == 1
    assert total["spec_decode_num_accepted_tokens_per_pos"] == [1, 0]
    assert (total["acceptance_rate"], total["tokens_per_step"]) == (0.5, 2.0)
    assert (
        data["by_task"]["code"] == data["by_position"]["4K-8K"] == data["by_drafts"]["2"] == total
    )


def test_prometheus_has_each_series_once_whatever_the_temperature() -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="the extra metrics")
    telemetry = _telemetry(Clock())
    for temperature, accepted in ((0.7, 1), (1.0, 2)):
        labels = telemetry.labels("code", "match", temperature)
        telemetry.note_step(labels, position=5, drafted=2, accepted=accepted, tokens=accepted + 1)
    text = prometheus_text(telemetry).decode()
    series = [line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    (steps,) = families["selfdraft:decode_steps"].samples
    assert steps.value == 2
    per_position = families["selfdraft:spec_decode_num_accepted_tokens_per_pos"].samples
    assert [sample.value for sample in per_position] == [2, 1]


def _loop(tiny: ModuleType, telemetry: Telemetry, **options: Any) -> DecodeLoop:
    backend: Any = ScriptedBackend(
        tiny, lambda h: (h[-1] + 1) % 16, errors=0.3, context_length=4400
    )
    return DecodeLoop(backend, telemetry=telemetry, **options)


@pytest.mark.parametrize("drafts", [0, 1, 3])
def test_loop_counts_what_its_results_say(tiny: ModuleType, drafts: int) -> None:
    telemetry = _telemetry(Clock())
    loop = _loop(tiny, telemetry, drafts=drafts, batch=2)
    requests = {
        slot: Request(prompt_ids=(0, slot), max_tokens=40, task=task)
        for slot, task in enumerate(("code", "chat"))
    }
    generation = Generation(loop, requests)
    for _ in generation:
        pass
    snapshot = telemetry.snapshot()
    for slot, task in enumerate(("code", "chat")):
        result, own = generation.results[slot], snapshot.by_task[task]
        assert own.steps == result.steps and own.tokens == len(result.tokens) - 1
        assert own.counts.drafted == result.drafted[: len(own.counts.drafted)]
        assert own.counts.accepted == result.accepted[: len(own.counts.accepted)]
    assert generation.results[1].telemetry is not None
    assert generation.results[1].telemetry.total == snapshot.total


def test_loop_tells_positions_of_the_whole_sequence(tiny: ModuleType) -> None:
    telemetry = _telemetry(Clock())
    loop = _loop(tiny, telemetry, drafts=0, prefill_rows=2048)
    request = Request(prompt_ids=tuple(i % 16 for i in range(4090)), max_tokens=12)
    for _ in Generation(loop, {0: request}):
        pass
    by_position = telemetry.snapshot().by_position
    # The token at 4090 comes from the prefill; steps draw those at 4091 to 4101.
    assert {label: own.steps for label, own in by_position.items()} == {"0-4K": 5, "4K-8K": 6}


def test_forced_acceptance_is_not_counted(tiny: ModuleType) -> None:
    telemetry = _telemetry(Clock())
    loop = _loop(tiny, telemetry, drafts=1, forced_acceptance=[0.5])
    generation = Generation(loop, {0: Request(prompt_ids=(0,), max_tokens=9)})
    for _ in generation:
        pass
    assert telemetry.snapshot().total.steps == 0
    assert generation.result.telemetry is None


def test_replies_with_budgets_are_counted_once_each(tiny: ModuleType) -> None:
    telemetry = _telemetry(Clock())
    loop = _loop(tiny, telemetry, drafts=1)
    thinking = Thinking(tags=ThinkTags(start_ids=(3,), end_ids=(9,)), budget=2)
    request = Request(prompt_ids=(0, 1), max_tokens=30, thinking=thinking)
    for _ in Generation(loop, {0: request}):
        pass
    with Generation(loop, {0: dataclasses.replace(request, task="cut off")}) as generation:
        for _ in range(8):
            next(generation)
    assert telemetry.thinking_totals == {("default", 2): [1, 1, 0], ("cut off", 2): [1, 1, 0]}


def test_task_of_a_request_goes_through_json_and_is_checked() -> None:
    request = Request(prompt_ids=(1,), task="code review")
    data = request_to_json(request)
    assert data["task"] == "code review" and request_from_json(data) == request
    assert "task" not in request_to_json(Request(prompt_ids=(1,)))
    for wrong in ("", "x" * 65, "two\nlines"):
        with pytest.raises(ConfigError, match="task is"):
            Request(prompt_ids=(1,), task=wrong)
