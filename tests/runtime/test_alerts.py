"""Alerts on scripted streams and a fake clock: raised and ended exactly where the policy says."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from support.clocked_backend import Clock

from selfdraft.baseline import Baseline, BucketCounts, DraftCounts, TaskBaseline, bucket_range
from selfdraft.runtime.telemetry.alerts import AlertPolicy
from selfdraft.runtime.telemetry.change import DropDetector
from selfdraft.runtime.telemetry.meter import Telemetry

FLOORS_ONLY = AlertPolicy(reference_drafts=10**9)
"""No test of change gets a reference."""


class Stream:
    """Steps of one draft each, one a second; ``events`` as (kind, scope, raised)."""

    def __init__(
        self,
        policy: AlertPolicy = FLOORS_ONLY,
        *,
        baseline: Baseline | None = None,
        window_s: float = 1000.0,
    ) -> None:
        self.clock = Clock()
        self.telemetry = Telemetry(
            baseline=baseline, policy=policy, clock=self.clock, window_s=window_s, check_every=1
        )
        self.events: list[tuple[str, str, bool]] = []

    def feed(
        self,
        outcomes: Iterable[bool],
        *,
        task: str = "default",
        position: int = 0,
        temperature: float = 0.0,
    ) -> list[tuple[str, str, bool]]:
        """What these steps raised or ended."""
        before = len(self.events)
        labels = self.telemetry.labels(task, "greedy", temperature)
        for hit in outcomes:
            self.clock.now += 1.0
            self.telemetry.note_step(
                labels, position=position, drafted=1, accepted=int(hit), tokens=1 + int(hit)
            )
            self.events += [
                (event.alert.kind, event.alert.scope, event.raised)
                for event in self.telemetry.take_events()
            ]
        return self.events[before:]


def _even(rate: float, count: int) -> list[bool]:
    """So many outcomes, as evenly spread as can be."""
    return [math.floor((i + 1) * rate) > math.floor(i * rate) for i in range(count)]


def _random(rate: float, count: int, *, seed: int = 0) -> list[bool]:
    return (np.random.default_rng(seed).random(count) < rate).tolist()


@pytest.mark.parametrize(("accepted", "raised"), [(400, False), (399, True)])
def test_global_floor_is_below_80_percent(accepted: int, raised: bool) -> None:
    stream = Stream()
    events = stream.feed([False] * (500 - accepted) + [True] * accepted)
    assert events == ([("global", "", True)] if raised else [])
    assert [alert.kind for alert in stream.telemetry.alerts] == ["global"] * raised


@pytest.mark.parametrize(("accepted", "raised"), [(350, False), (349, True)])
def test_task_floor_is_below_70_percent(accepted: int, raised: bool) -> None:
    stream = Stream(AlertPolicy(global_floor=0.0, reference_drafts=10**9))
    events = stream.feed([False] * (500 - accepted) + [True] * accepted, task="code")
    assert events == ([("task", "code", True)] if raised else [])


def test_nothing_is_judged_below_the_least_sample() -> None:
    stream = Stream()
    assert stream.feed([False] * 499) == []
    assert stream.feed([False]) == [("global", "", True)]


def test_text_without_a_task_is_under_the_global_floor_only() -> None:
    assert Stream().feed([False] * 600) == [("global", "", True)]


def test_alert_ends_well_above_the_floor_only() -> None:
    """Window of 1,000: raised at 79 %, still there at 80 to 82.9 %, over at 83 %."""
    stream = Stream()
    stream.feed(_even(0.79, 1000))
    (alert,) = stream.telemetry.alerts
    assert stream.feed(_even(0.825, 2000)) == []
    assert stream.telemetry.alerts[0].since == alert.since
    assert stream.telemetry.alerts[0].rate == pytest.approx(0.825)
    assert stream.feed(_even(0.84, 1000)) == [("global", "", False)]


def test_rates_that_swing_about_the_floor_raise_it_once() -> None:
    stream = Stream()
    for _ in range(20):
        stream.feed(_even(0.78, 1000))
        stream.feed(_even(0.82, 1000))
    assert stream.events == [("global", "", True)]


@pytest.mark.parametrize(
    ("rate", "raised", "most_events"), [(0.77, True, 1), (0.80, None, 3), (0.85, False, 0)]
)
@pytest.mark.parametrize("seed", range(4))
def test_noise_neither_flaps_nor_hides_it(
    rate: float, raised: bool | None, most_events: int, seed: int
) -> None:
    """20,000 independent drafts through a window of 1,000."""
    stream = Stream()
    stream.feed(_random(rate, 20_000, seed=seed))
    assert len(stream.events) <= most_events
    if raised is not None:
        assert bool(stream.telemetry.alerts) == raised


def test_alert_ends_when_its_window_is_empty() -> None:
    stream = Stream(window_s=600.0)
    stream.feed([False] * 500, task="code")
    assert {event[0] for event in stream.events} == {"global", "task"}
    stream.clock.now += 700.0
    assert stream.telemetry.snapshot().alerts == ()
    assert [event.raised for event in stream.telemetry.take_events()] == [False, False]


def test_tasks_are_judged_apart() -> None:
    stream = Stream(window_s=4000.0)
    for _ in range(20):
        stream.feed(_even(0.95, 100), task="chat")
        stream.feed(_even(0.60, 40), task="code")
    assert stream.events == [("task", "code", True)]


def _baseline(*rates: float, task: str = "default", steps: int = 20_000) -> Baseline:
    """So many steps in each of the first buckets."""
    buckets = []
    for index, rate in enumerate(rates):
        start, end = bucket_range(index)
        counts = DraftCounts(drafted=(steps,), accepted=(round(rate * steps),))
        buckets.append(BucketCounts(start=start, end=end, counts=counts))
    whole = DraftCounts(
        drafted=(steps * len(rates),), accepted=(sum(b.counts.accepted[0] for b in buckets),)
    )
    return Baseline(
        text="text",
        text_sha256="0" * 64,
        tokens=1,
        method="decoded",
        tasks=(TaskBaseline(task=task, counts=whole, buckets=tuple(buckets)),),
    )


DECAY_ONLY = AlertPolicy(global_floor=0.0, task_floor=0.0, drop=0.5, reference_drafts=10**9)


def test_decay_that_the_baseline_shows_too_is_no_alert() -> None:
    stream = Stream(DECAY_ONLY, baseline=_baseline(0.9, 0.8))
    stream.feed(_even(0.9, 900))
    assert stream.feed(_even(0.79, 900), position=5000) == []


def test_decay_beyond_the_baseline_is_one() -> None:
    stream = Stream(DECAY_ONLY, baseline=_baseline(0.9, 0.8))
    stream.feed(_even(0.9, 900))
    scope = "task default, 4K-8K"
    assert stream.feed(_even(0.68, 900), position=5000) == [("decay", scope, True)]
    (alert,) = stream.telemetry.alerts
    assert alert.limit == pytest.approx(0.8, abs=0.01) and "4K-8K" in alert.text
    assert stream.feed(_even(0.80, 1500), position=5000) == [("decay", scope, False)]


def test_decay_without_a_baseline_is_against_the_start_of_the_context() -> None:
    stream = Stream(DECAY_ONLY)
    stream.feed(_even(0.9, 900))
    assert stream.feed(_even(0.88, 900), position=70_000) == []
    events = stream.feed(_even(0.75, 900), position=20_000)
    assert events == [("decay", "task default, 16K-32K", True)]


def test_decay_needs_a_start_to_compare_with() -> None:
    assert Stream(DECAY_ONLY).feed(_even(0.3, 900), position=70_000) == []


CHANGE_ONLY = AlertPolicy(global_floor=0.0, task_floor=0.0)


def test_sudden_drop_below_the_baseline_is_found_within_its_sample() -> None:
    """From 88 % to 70 %: after a hundred drafts or so."""
    stream = Stream(CHANGE_ONLY, baseline=_baseline(0.88))
    assert stream.feed(_random(0.88, 20_000)) == []
    events = stream.feed(_random(0.70, 300, seed=1))
    assert events == [("change", "task default, temperature 0", True)]
    assert stream.telemetry.alerts[0].limit == pytest.approx(0.88, abs=0.01)
    assert stream.feed(_random(0.88, 1000, seed=2)) == [
        ("change", "task default, temperature 0", False)
    ]


def test_small_drift_is_no_sudden_change() -> None:
    stream = Stream(CHANGE_ONLY, baseline=_baseline(0.88))
    assert stream.feed(_random(0.86, 20_000)) == []


def test_sampled_text_is_compared_with_its_own_beginning() -> None:
    """At temperature 1 fewer drafts are accepted than in the baseline: that is no change."""
    stream = Stream(CHANGE_ONLY, baseline=_baseline(0.95))
    assert stream.feed(_random(0.6, 5000), temperature=1.0) == []
    events = stream.feed(_random(0.35, 400, seed=3), temperature=1.0)
    assert events == [("change", "task default, temperature 1", True)]


def test_tasks_have_references_of_their_own() -> None:
    stream = Stream(CHANGE_ONLY)
    stream.feed(_random(0.9, 2000), task="chat")
    assert stream.feed(_random(0.5, 2000, seed=1), task="code") == []


@pytest.mark.parametrize("rate", [0.6, 0.85, 0.95])
def test_false_alarms_are_as_rare_as_stated(rate: float) -> None:
    """Mean drafts to a false alarm over 150 runs, for a run length short enough to be waited for."""
    run_length, rng, lengths = 300.0, np.random.default_rng(1), []
    for _ in range(150):
        detector, count = DropDetector(rate, drop=0.10, run_length=run_length), 0
        while not detector.alarm and count < 20_000:
            for hit in (rng.random(64) < rate).tolist():
                detector.note(hit)
                count += 1
                if detector.alarm:
                    break
        lengths.append(count)
    assert np.mean(lengths) >= run_length


@pytest.mark.parametrize(("after", "most"), [(0.75, 1000), (0.65, 300), (0.3, 60)])
def test_drops_are_found_the_sooner_the_deeper(after: float, most: int) -> None:
    delays = []
    for seed in range(60):
        detector, count = DropDetector(0.85, drop=0.10, run_length=100_000), 0
        for hit in _random(after, 5000, seed=seed):
            detector.note(hit)
            count += 1
            if detector.alarm:
                break
        assert detector.alarm
        delays.append(count)
    assert np.median(delays) < most


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.99, 1.0])
def test_extreme_references_are_survived(rate: float) -> None:
    detector = DropDetector(rate, drop=0.10, run_length=1000)
    for hit in [True, False] * 50:
        detector.note(hit)
