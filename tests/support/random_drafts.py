"""A policy that changes its mind at every step."""

from __future__ import annotations

import random
import time

from selfdraft.runtime.adaptive.policy import StepPlan


class RandomDrafts:
    """Any number of drafts in any step, rests of any length among them; what it was told is kept."""

    when_drawn = 1

    def __init__(self, most: int, *, seed: int = 0, rests: float = 0.5) -> None:
        self.most, self.clock = most, time.perf_counter
        self._random, self._rests = random.Random(seed), rests
        self.plans: list[StepPlan] = []
        self.chains: list[tuple[int, bool]] = []

    def plan(self) -> StepPlan:
        resting = self._random.random() < self._rests
        drafts = 0 if resting else self._random.randint(0, self.most)
        resync = drafts > 0 or self._random.random() < 0.15
        self.plans.append(StepPlan(drafts, resync))
        return self.plans[-1]

    def note_chain(self, accepted: int, *, rejected: bool) -> None:
        self.chains.append((accepted, rejected))

    def note_step(self, drafts: int, seconds: float) -> None:
        assert drafts == self.plans[-1].drafts and seconds >= 0
