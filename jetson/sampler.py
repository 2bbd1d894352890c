"""A thread that samples the board while something else runs, and keeps itself cheap."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import final

from selfdraft.jetson.sample import BoardSample

CPU_LIMIT = 0.01
"""Share of one CPU that sampling may take."""
_KEPT_SAMPLES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSample:
    """A sample and when it was taken, in seconds of ``time.monotonic``."""

    at_s: float
    sample: BoardSample


def next_interval_s(interval_s: float, *, cost_s: float, limit: float = CPU_LIMIT) -> float:
    """Seconds between samples that cost ``cost_s`` of CPU each: as asked, or as many as keep the
    share of one CPU below ``limit``."""
    return max(interval_s, cost_s / limit)


@final
class Sampler:
    """Samples in a thread of its own from ``start`` to ``stop``; also a context manager.

    The interval stretches when a sample turns out to cost more than ``cpu_limit`` of it.
    An error of ``read`` ends the sampling, and ``stop`` raises it.
    """

    def __init__(
        self,
        read: Callable[[], BoardSample],
        *,
        interval_s: float = 1.0,
        cpu_limit: float = CPU_LIMIT,
    ) -> None:
        self._read = read
        self._interval_s = interval_s
        self._cpu_limit = cpu_limit
        self._samples: deque[TimedSample] = deque(maxlen=_KEPT_SAMPLES)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="board-sampler", daemon=True)
        self._error: Exception | None = None
        self._began_s = 0.0
        self._wall_s = 0.0
        self._cpu_s = 0.0

    @property
    def samples(self) -> tuple[TimedSample, ...]:
        """What was sampled so far, the oldest first."""
        return tuple(self._samples)

    @property
    def cpu_share(self) -> float:
        """Share of one CPU that the thread has taken."""
        return self._cpu_s / self._wall_s if self._wall_s else 0.0

    def start(self) -> Sampler:
        """Begin; the first sample is taken at once."""
        self._began_s = time.monotonic()
        self._thread.start()
        return self

    def stop(self) -> None:
        """End, after one last sample."""
        self._ended.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Sampler:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            is_last = False
            while not is_last:
                is_last = self._ended.is_set()
                cost_s = self._take()
                wait_s = next_interval_s(self._interval_s, cost_s=cost_s, limit=self._cpu_limit)
                self._ended.wait(0.0 if is_last else wait_s)
        except Exception as error:  # noqa: BLE001 - raised by stop, in the caller's thread
            self._error = error

    def _take(self) -> float:
        """One sample; its cost in seconds of CPU."""
        before_s = time.thread_time()
        self._samples.append(TimedSample(at_s=time.monotonic(), sample=self._read()))
        self._cpu_s = time.thread_time()
        self._wall_s = time.monotonic() - self._began_s
        return self._cpu_s - before_s


def energy_joules(samples: Sequence[TimedSample], *, start_s: float, end_s: float) -> float | None:
    """Energy of the module between two moments of ``time.monotonic``: power between samples is a
    straight line, and before the first and after the last as there. ``None`` without power."""
    points = [
        (timed.at_s, timed.sample.power_mw / 1e3)
        for timed in samples
        if timed.sample.power_mw is not None
    ]
    if not points or end_s < start_s:
        return None
    inside = [point for point in points if start_s < point[0] < end_s]
    ends = [(moment, _watts_at(points, moment)) for moment in (start_s, end_s)]
    line = [ends[0], *inside, ends[1]]
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(line))


def _watts_at(points: Sequence[tuple[float, float]], moment: float) -> float:
    before = [point for point in points if point[0] <= moment]
    after = [point for point in points if point[0] >= moment]
    if not before or not after:
        return points[0][1] if not before else points[-1][1]
    (at, watts), (next_at, next_watts) = before[-1], after[0]
    if next_at == at:
        return watts
    return watts + (next_watts - watts) * (moment - at) / (next_at - at)
