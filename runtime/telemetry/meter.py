"""The instrument: takes in every step of every slot, gives counts, snapshots and alerts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from selfdraft.baseline import Baseline, bucket_label, bucket_of
from selfdraft.runtime.telemetry.alerts import Alert, AlertEvent, AlertPolicy, Alerts
from selfdraft.runtime.telemetry.counts import (
    OTHER_TASK,
    Histogram,
    Key,
    Labels,
    StepCounts,
    sum_histograms,
)
from selfdraft.runtime.telemetry.window import Window
from selfdraft.runtime.thinking_record import ThinkingRate, ThinkingRecord, thinking_rates

WINDOW_S = 300.0
CHECK_EVERY = 128
"""Steps between two looks at the rules of alerts; snapshots look too."""
MOST_TASKS = 64
"""Task labels that are counted on their own; further ones are counted together."""
MOST_TEMPERATURES = 32
"""Temperatures that are counted on their own; a further one counts as the nearest of them."""
MOST_BUDGETS = 64
"""Thinking budgets that are counted on their own; a further one counts as the nearest of them."""
Level = TypeVar("Level", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The window as it stood at one moment."""

    window_s: float
    at: float
    """Seconds of the telemetry's clock."""
    total: StepCounts
    by_task: Mapping[str, StepCounts]
    by_position: Mapping[str, StepCounts]
    """By bucket of the absolute position, e.g. ``4K-8K``."""
    by_drafts: Mapping[int, StepCounts]
    """By the drafts that the head made in a step."""
    thinking: tuple[ThinkingRate, ...]
    """Replies with a thinking budget, by level and temperature."""
    alerts: tuple[Alert, ...]

    def to_json(self) -> dict[str, Any]:
        """Counts and rates as plain values."""
        return {
            "window_s": self.window_s,
            "total": self.total.to_json(),
            "by_task": {task: own.to_json() for task, own in self.by_task.items()},
            "by_position": {label: own.to_json() for label, own in self.by_position.items()},
            "by_drafts": {str(drafts): own.to_json() for drafts, own in self.by_drafts.items()},
            "thinking": [_thinking_json(rate) for rate in self.thinking],
            "alerts": [alert.to_json() for alert in self.alerts],
        }


class Telemetry:
    """One instrument may serve several loops of one bundle, one after the other or in turns.

    ``clock`` must be monotonic. ``note_step`` takes some microseconds
    (``python -m benchmarks.telemetry_cost``). Snapshots may be taken from any thread.
    """

    def __init__(
        self,
        *,
        baseline: Baseline | None = None,
        window_s: float = WINDOW_S,
        policy: AlertPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        check_every: int = CHECK_EVERY,
    ) -> None:
        self._clock = clock
        self._window = Window(window_s)
        self._alerts = Alerts(policy or AlertPolicy(), baseline)
        self._check_every, self._unchecked = check_every, 0
        self._tasks: set[str] = set()
        self._temperatures: set[float] = set()
        self._budgets: set[int] = set()
        self._lock = threading.Lock()
        self.totals: dict[Key, Histogram] = {}
        """Every step since the start."""
        self.thinking_totals: dict[tuple[str, int], list[int]] = {}
        """Replies, triggered and violated budgets since the start, by task and level."""

    def labels(self, task: str, mode: str, temperature: float) -> Labels:
        """Labels of a request, made once for all its steps."""
        if task not in self._tasks and len(self._tasks) >= MOST_TASKS:
            task = OTHER_TASK
        self._tasks.add(task)
        return Labels(task, mode, _known(self._temperatures, temperature, MOST_TEMPERATURES))

    def note_step(
        self, labels: Labels, *, position: int, drafted: int, accepted: int, tokens: int
    ) -> None:
        """One step of one slot: drafts of the head, those accepted, and tokens drawn.

        ``position``: absolute position of the step's first token.
        """
        key = Key(labels, bucket_of(position), drafted)
        with self._lock:
            self._count_step(key, accepted, tokens)

    def _count_step(self, key: Key, accepted: int, tokens: int) -> None:
        total = self.totals.get(key)
        if total is None:
            total = self.totals[key] = Histogram(key.drafts)
        total.steps[accepted] += 1
        total.tokens += tokens
        now = self._clock()
        self._window.add(now, key, accepted, tokens)
        if key.drafts:
            self._alerts.note(key.labels, accepted > 0)
        self._unchecked += 1
        if self._unchecked >= self._check_every:
            self._check(now)

    def note_reply(self, labels: Labels, thinking: ThinkingRecord | None) -> None:
        """A reply ended; ``thinking`` says how it kept to its budget, where it had one."""
        if thinking is None:
            return
        with self._lock:
            self._window.add_reply(self._clock(), thinking)
            budget = _known(self._budgets, thinking.budget, MOST_BUDGETS)
            counts = self.thinking_totals.setdefault((labels.task, budget), [0, 0, 0])
            for index, count in enumerate((True, thinking.triggered, thinking.violated)):
                counts[index] += count

    def snapshot(self) -> Snapshot:
        """The window now, with the alerts that stand."""
        with self._lock:
            return self._snapshot(self._clock())

    def _snapshot(self, now: float) -> Snapshot:
        self._check(now)
        parts = {key: part for key, part in self._window.histograms.items() if any(part.steps)}
        return Snapshot(
            window_s=self._window.seconds,
            at=now,
            total=sum_histograms(parts.values()),
            by_task=_grouped(parts, lambda key: key.labels.task),
            by_position={
                bucket_label(bucket): own
                for bucket, own in _grouped(parts, lambda key: key.bucket).items()
            },
            by_drafts=_grouped(parts, lambda key: key.drafts),
            thinking=tuple(thinking_rates(self._window.replies)),
            alerts=self._alerts.active,
        )

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """Alerts that stand."""
        return self._alerts.active

    def take_events(self) -> list[AlertEvent]:
        """What was raised or ended since the last call, oldest first."""
        with self._lock:
            events = list(self._alerts.events)
            self._alerts.events.clear()
            return events

    def _check(self, now: float) -> None:
        self._unchecked = 0
        self._window.expire(now)
        self._alerts.check(now, self._window.histograms, self.totals)


def _known(levels: set[Level], level: Level, most: int) -> Level:
    """``level``, and the nearest of ``levels`` once these are ``most``: clients choose them freely."""
    if level in levels or len(levels) < most:
        levels.add(level)
        return level
    return min(levels, key=lambda known: (abs(known - level), known))


def _grouped(parts: Mapping[Key, Histogram], group: Callable[[Key], Any]) -> dict[Any, StepCounts]:
    """Counts by what ``group`` says of each kind, in order."""
    return {
        value: sum_histograms(part for key, part in parts.items() if group(key) == value)
        for value in sorted({group(key) for key in parts})
    }


def _thinking_json(rate: ThinkingRate) -> dict[str, Any]:
    return {
        "budget": rate.budget,
        "temperature": rate.temperature,
        "replies": rate.replies,
        "triggered": rate.triggered,
        "violated": rate.violated,
        "trigger_rate": rate.trigger_rate,
        "violation_rate": rate.violation_rate,
    }
