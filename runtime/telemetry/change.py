"""A sudden drop of acceptance, found as soon as it is certain enough."""

from __future__ import annotations

import math

LEAST_RATE, MOST_RATE = 0.02, 0.98
"""Rates that the test reckons with: 0 and 1 would make a single draft decide."""
RECOVERY = 1000.0
"""How much likelier the old rate must be than the dropped one before the alert goes."""


class DropDetector:
    """Page's CUSUM test (Biometrika 41, 1954) of a share that falls from ``rate`` by ``drop``.

    Each draft adds the logarithm of how much likelier it is after the drop; the sum never goes below 0,
    and the alarm is raised at log(``run_length``). Without a drop, independent drafts give a false alarm
    at most once in ``run_length`` of them on average (Lorden, Ann. Math. Stat. 42, 1971). The same
    test the other way round ends the alarm.
    """

    __slots__ = ("_hit", "_limit", "_miss", "_recovered", "_sum", "alarm", "rate")

    def __init__(self, rate: float, *, drop: float, run_length: float) -> None:
        before = min(max(rate, LEAST_RATE + 0.01), MOST_RATE)
        after = max(before - drop, LEAST_RATE)
        self.rate = rate
        self._hit = math.log(after / before)
        self._miss = math.log((1 - after) / (1 - before))
        self._limit, self._recovered = math.log(run_length), math.log(RECOVERY)
        self._sum = 0.0
        self.alarm = False

    def note(self, hit: bool) -> None:
        """One more draft was accepted, or not."""
        gain = self._hit if hit else self._miss
        if self.alarm:
            gain = -gain
        self._sum += gain
        if self._sum <= 0:
            self._sum = 0.0
        elif self._sum >= (self._recovered if self.alarm else self._limit):
            self.alarm = not self.alarm
            self._sum = 0.0


class OwnReference:
    """The first drafts of a kind that no baseline covers, until there are enough of them."""

    __slots__ = ("accepted", "drafted")

    def __init__(self) -> None:
        self.accepted = self.drafted = 0

    def note(self, hit: bool) -> None:
        self.accepted += hit
        self.drafted += 1
