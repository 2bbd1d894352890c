"""Alerts on acceptance: floors, decay with position, and sudden change, each with hysteresis.

All look at the first draft of a step, the one that the head was trained to predict: its rate does not
depend on how many drafts a step has.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from selfdraft.baseline import DEFAULT_TASK, Baseline, bucket_label, wilson_interval
from selfdraft.runtime.telemetry.change import DropDetector, OwnReference
from selfdraft.runtime.telemetry.counts import Histogram, Key, Labels

AlertKind = Literal["global", "task", "decay", "change"]
EVENTS_KEPT = 256
Trials = tuple[int, int]
"""Accepted and drafted first drafts."""
NONE: Trials = (0, 0)
Group = TypeVar("Group")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertPolicy:
    """When an alert is raised and when it goes."""

    global_floor: float = 0.80
    task_floor: float = 0.70
    """Of requests that name a task."""
    margin: float = 0.03
    """An alert on a floor goes when the rate is so far above it, and certainly above it."""
    least_drafts: int = 500
    """First drafts in the window from which a rate is judged."""
    decay_margin: float = 0.05
    """How much more than in the baseline acceptance may fall towards a later position."""
    decay_z: float = 2.326
    """Standard deviations that this must be certain by: 1 false alarm in 100 looks."""
    drop: float = 0.10
    """Drop below the reference that the test of change is tuned to."""
    run_length: float = 100_000.0
    """First drafts of one task between two false alarms of that test, on average, at least."""
    reference_drafts: int = 500
    """First drafts that stand for a baseline where the bundle has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something to look at."""

    kind: AlertKind
    scope: str
    """Task, or task and positions; empty for everything."""
    rate: float
    """Acceptance of first drafts when it was raised or last looked at."""
    limit: float
    """What it was held against: the floor, or the rate expected there."""
    drafts: int
    """First drafts that the rate comes from."""
    since: float
    """Seconds of the telemetry's clock when it was raised."""

    @property
    def text(self) -> str:
        """One line for people."""
        seen = f"first drafts accepted {100 * self.rate:.1f} % ({self.drafts} in the window)"
        return {
            "global": f"{seen}, below {100 * self.limit:.0f} %",
            "task": f"task {self.scope}: {seen}, below {100 * self.limit:.0f} %",
            "decay": f"{self.scope}: {seen}, expected {100 * self.limit:.1f} % at these positions",
            "change": f"{self.scope}: {seen}, a sudden drop from {100 * self.limit:.1f} %",
        }[self.kind]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "kind": self.kind,
            "scope": self.scope,
            "rate": self.rate,
            "limit": self.limit,
            "drafts": self.drafts,
            "since_s": self.since,
            "text": self.text,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertEvent:
    """An alert was raised, or is over."""

    raised: bool
    at: float
    alert: Alert

    @property
    def text(self) -> str:
        """One line for people."""
        return f"alert: {self.alert.text}" if self.raised else f"alert over: {self.alert.text}"


@dataclass(frozen=True, slots=True)
class _Finding:
    """What one rule says of one scope now."""

    rate: float
    limit: float
    drafts: int
    bad: bool
    """Raise it."""
    good: bool
    """It is over."""


class FirstDrafts:
    """First drafts of many kinds of steps, summed up in the ways that the rules want."""

    def __init__(self, parts: Mapping[Key, Histogram]) -> None:
        self.everything = NONE
        self.by_task: dict[str, Trials] = {}
        self.by_bucket: dict[tuple[str, int], Trials] = {}
        self.by_temperature: dict[tuple[str, float], Trials] = {}
        for key, part in parts.items():
            if not key.drafts:
                continue
            drafted = sum(part.steps)
            trials = (drafted - part.steps[0], drafted)
            task = key.labels.task
            self.everything = _plus(self.everything, trials)
            _add(self.by_task, task, trials)
            _add(self.by_bucket, (task, key.bucket), trials)
            _add(self.by_temperature, (task, key.labels.temperature), trials)


class Alerts:
    """Raises and ends alerts; ``events`` are those not yet taken, oldest first."""

    def __init__(self, policy: AlertPolicy, baseline: Baseline | None) -> None:
        self._policy, self._baseline = policy, baseline
        self._active: dict[tuple[AlertKind, str], Alert] = {}
        self._decays: dict[tuple[str, int, int], tuple[float, float]] = {}
        self._watched: dict[tuple[str, float], DropDetector | OwnReference] = {}
        self.events: deque[AlertEvent] = deque(maxlen=EVENTS_KEPT)

    @property
    def active(self) -> tuple[Alert, ...]:
        """Raised and not over."""
        return tuple(self._active.values())

    def note(self, labels: Labels, hit: bool) -> None:
        """One more first draft; tests of change look at each."""
        key = (labels.task, labels.temperature)
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = self._reference(labels)
        watched.note(hit)
        if type(watched) is OwnReference and watched.drafted >= self._policy.reference_drafts:
            self._watched[key] = self._detector(watched.accepted, watched.drafted)

    def check(
        self, now: float, window: Mapping[Key, Histogram], totals: Mapping[Key, Histogram]
    ) -> None:
        """Look at every rule: first drafts of the window, and those of all time for what they began with."""
        recent, ever = FirstDrafts(window), FirstDrafts(totals)
        self._settle(now, "global", "", self._floor(recent.everything, self._policy.global_floor))
        for task, own in recent.by_task.items():
            if task != DEFAULT_TASK:
                self._settle(now, "task", task, self._floor(own, self._policy.task_floor))
        for (task, bucket), own in recent.by_bucket.items():
            if bucket:
                decay = self._decay(task, bucket, own, ever.by_bucket)
                self._settle(now, "decay", f"task {task}, {bucket_label(bucket)}", decay)
        for (task, temperature), watched in self._watched.items():
            if isinstance(watched, DropDetector):
                scope = f"task {task}, temperature {temperature:g}"
                trials = recent.by_temperature.get((task, temperature), NONE)
                self._settle(now, "change", scope, _change(watched, trials))

    def _settle(self, now: float, kind: AlertKind, scope: str, found: _Finding) -> None:
        alert = self._active.get((kind, scope))
        if alert is None and not found.bad:
            return
        current = Alert(
            kind=kind,
            scope=scope,
            rate=found.rate,
            limit=found.limit,
            drafts=found.drafts,
            since=now if alert is None else alert.since,
        )
        if alert is None:
            self._active[kind, scope] = current
            self.events.append(AlertEvent(raised=True, at=now, alert=current))
        elif found.good:
            del self._active[kind, scope]
            self.events.append(AlertEvent(raised=False, at=now, alert=current))
        elif found.drafts:
            self._active[kind, scope] = current

    def _floor(self, trials: Trials, floor: float) -> _Finding:
        rate, drafted = _rate(trials), trials[1]
        enough = drafted >= self._policy.least_drafts
        above = enough and rate >= floor + self._policy.margin
        over = above and wilson_interval(*trials)[0] >= floor
        # Nothing left in the window: there is nothing to be alarmed about any more.
        return _Finding(rate, floor, drafted, enough and rate < floor, over or not drafted)

    def _decay(
        self, task: str, bucket: int, here: Trials, ever: Mapping[tuple[str, int], Trials]
    ) -> _Finding:
        """A bucket against the first one that was measured, and what the baseline loses between them."""
        policy = self._policy
        enough = here[1] >= policy.least_drafts
        measured = (b for b in range(bucket) if ever.get((task, b), NONE)[1] >= policy.least_drafts)
        first = next(measured, None)
        if first is None or not enough:
            return _Finding(_rate(here), 0.0, here[1], False, first is None or not here[1])
        there = ever[task, first]
        known = (task, first, bucket)
        if known not in self._decays:
            self._decays[known] = self._usual_decay(*known)
        usual, variance = self._decays[known]
        limit = _rate(there) - usual
        excess = limit - _rate(here) - policy.decay_margin
        noise = math.sqrt(_variance(*here) + _variance(*there) + variance)
        bad = excess > policy.decay_z * noise
        return _Finding(_rate(here), limit, here[1], bad, excess < -policy.decay_margin / 2)

    def _usual_decay(self, task: str, first: int, bucket: int) -> tuple[float, float]:
        """Fall of the baseline between two buckets, and its variance; 0 where it was not measured.

        A baseline that ends before ``bucket`` says what it can: the fall up to its own end.
        """
        if self._baseline is None:
            return 0.0, 0.0
        start = self._baseline.bucket(first, task).trials(0)
        ends = (self._baseline.bucket(b, task).trials(0) for b in range(bucket, first, -1))
        end = next((trials for trials in ends if trials[1]), (0, 0))
        if not start[1] or not end[1]:
            return 0.0, 0.0
        fall = max(_rate(start) - _rate(end), 0.0)
        return fall, _variance(*start) + _variance(*end)

    def _reference(self, labels: Labels) -> DropDetector | OwnReference:
        """The baseline holds for temperature 0; sampled text is compared with its own beginning."""
        if self._baseline is not None and labels.temperature == 0:
            accepted, drafted = self._baseline.counts(labels.task).trials(0)
            if drafted:
                return self._detector(accepted, drafted)
        return OwnReference()

    def _detector(self, accepted: int, drafted: int) -> DropDetector:
        """From the low end of the reference's interval: what it does not know must not alarm."""
        low = wilson_interval(accepted, drafted)[0]
        return DropDetector(low, drop=self._policy.drop, run_length=self._policy.run_length)


def _change(watched: DropDetector, trials: Trials) -> _Finding:
    return _Finding(_rate(trials), watched.rate, trials[1], watched.alarm, not watched.alarm)


def _rate(trials: Trials) -> float:
    return trials[0] / trials[1] if trials[1] else 0.0


def _variance(accepted: int, drafted: int) -> float:
    """Of a share, with one success and one failure added, so that 0 and 1 are not certain."""
    share = (accepted + 1) / (drafted + 2)
    return share * (1 - share) / (drafted + 2)


def _add(groups: dict[Group, Trials], group: Group, trials: Trials) -> None:
    groups[group] = _plus(groups.get(group, NONE), trials)


def _plus(one: Trials, other: Trials) -> Trials:
    return one[0] + other[0], one[1] + other[1]
