"""How many drafts a step of several slots verifies: one step for all, a belief for each.

A step costs as much as the slot with the most rows makes it: the rows of the others are padded. So the
largest number of drafts is chosen for all slots together, by the tokens that all of them may expect, and
each slot drafts as far as its own text makes it likely that anything passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from selfdraft.runtime.adaptive.acceptance import AcceptanceEstimate
from selfdraft.runtime.adaptive.costs import StepCosts
from selfdraft.runtime.adaptive.policy import (
    CLEAR_GAIN,
    FIRST_WAIT,
    LONGEST_WAIT,
    MARGIN,
    PLAIN_EVERY,
    SELDOM,
    StepPlan,
)

LEAST_CHANCE = 0.04
"""A slot drafts no further than where a draft passes with this chance: the row is paid for, its attention
is not."""
WAKE_MARGIN = 0.03
"""Drafts must promise so much more speed than plain decoding to end a rest: costs are known with some noise."""
DEAR_KEEP_UP = 0.015
"""Share of plain decoding that a resting head may cost to keep up: a row a token, of every slot."""
LEAST_HOPE = 0.5
"""Where it costs more, the head gives a request up from which drafts may gain less than this part of that."""
MOST_SKIPPED = 7
"""Requests in a row that the head gives up from their first step on, where those before them left little
hope: 1, 3, … for each one that it looked at in vain."""
POOLED_AFTER = 24
"""Verdicts of all requests together from which a new one begins with what they had."""


class JointCosts:
    """Seconds of steps by the slots that they span: measured for some widths, others lie between.

    Each width is corrected by its own steps.
    """

    def __init__(
        self,
        measured: Mapping[int, Sequence[float]],
        *,
        keep_up: Mapping[int, float] | None = None,
    ) -> None:
        """``measured``: seconds with 0, 1, … drafts, by width; 1 is among the widths, or one alone is.

        ``keep_up``: seconds a step, by the same widths, that a resting head takes to keep up; None: nothing.
        """
        assert measured
        self._measured = {width: tuple(measured[width]) for width in sorted(measured)}
        self._keep_up = dict(keep_up or dict.fromkeys(measured, 0.0))
        self._by_width: dict[int, StepCosts] = {}

    def of(self, width: int) -> StepCosts:
        """Costs of steps over ``width`` slots."""
        costs = self._by_width.get(width)
        if costs is None:
            costs = self._by_width[width] = StepCosts(self._between(width))
        return costs

    @property
    def most(self) -> int:
        """The largest number of drafts."""
        return len(next(iter(self._measured.values()))) - 1

    @property
    def pays(self) -> bool:
        """Whether drafts could ever gain enough, at any width."""
        return any(self.of(width).pays for width in self._measured)

    def keep_up_share(self, width: int) -> float:
        """What a resting head costs at so many slots, by a plain step, as both were measured."""
        nearest = min(self._measured, key=lambda known: abs(known - width))
        return self._keep_up[nearest] / self._measured[nearest][0]

    def _between(self, width: int) -> list[float]:
        if width in self._measured:
            return list(self._measured[width])
        for low, high in pairwise(self._measured):
            if low < width < high:
                share = (width - low) / (high - low)
                pairs = zip(self._measured[low], self._measured[high], strict=True)
                return [(1 - share) * a + share * b for a, b in pairs]
        nearest = min(self._measured, key=lambda known: abs(known - width))
        return list(self._measured[nearest])


class JointDrafts:
    """The number of drafts with the most expected tokens a second of all slots; a ``BatchPolicy``.

    Every request has a belief of its own about its text (``AcceptanceEstimate``), which begins with what
    requests before it had. Where no number of drafts beats plain decoding the head rests, and catches up
    every ``FIRST_WAIT`` to ``LONGEST_WAIT`` steps to compare its draft with what the target draws. Keeping up
    takes a row of the head for every token, which many slots feel: there it gives up requests whose
    verdicts leave little hope, and looks at one of the next ``MOST_SKIPPED``. Requests that come or go change
    the tokens and the costs, and so the number.
    """

    def __init__(
        self,
        costs: JointCosts,
        *,
        prior: Sequence[float] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``prior``: acceptance of each position to begin with, given those before it."""
        self.clock = clock
        self.most = costs.most
        self.when_drawn = min(1, costs.most)
        self._costs = costs
        self._prior = tuple(prior)
        self._pooled = AcceptanceEstimate(costs.most, prior=prior)
        self._num_pooled = 0
        self._estimates: dict[int, AcceptanceEstimate] = {}
        self._judged: set[int] = set()
        """Slots that had a verdict since the head looked at what it gives up."""
        self._given_up: set[int] = set()
        self._skip = self._to_skip = 0
        """Requests that are given up unseen: next time, and left of this time."""
        self._slots: tuple[int, ...] = ()
        self._width = 0
        self._drafts = 0
        self._stale = True
        """Whether anything has happened that may call for another number."""
        self._plain_due = SELDOM * PLAIN_EVERY
        self._far = False
        self._waited, self._wait = 0, FIRST_WAIT

    def begin(self, slot: int) -> None:
        prior = self._pooled.rates if self._num_pooled >= POOLED_AFTER else self._prior
        self._estimates[slot] = AcceptanceEstimate(self.most, prior=prior)
        self._judged.discard(slot)
        if self._drafts:  # what came before was worth it
            self._skip = self._to_skip = 0
        if self._to_skip:
            self._to_skip -= 1
            self._given_up.add(slot)
        else:
            self._given_up.discard(slot)

    def plan(self, slots: Sequence[int], *, width: int) -> StepPlan:
        for slot in slots:
            if slot not in self._estimates:
                self.begin(slot)
        if tuple(slots) != self._slots or width != self._width:
            self._slots, self._width = tuple(slots), width
            self._stale = True
        if self._stale:
            self._choose()
        if not self._drafts:
            return self._rest()
        self._plain_due -= 1 if self._far else SELDOM
        if self._plain_due <= 0:
            self._plain_due = SELDOM * PLAIN_EVERY
            return StepPlan(0, False, given_up=self._given_up)
        depths = {slot: self._depth(slot) for slot in slots}
        return StepPlan(max(depths.values()), True, depths, self._given_up)

    def note_chain(self, slot: int, accepted: int, *, rejected: bool) -> None:
        if accepted or rejected:
            self._estimates[slot].note(accepted, rejected=rejected)
            self._pooled.note(accepted, rejected=rejected)
            self._num_pooled += 1
            self._judged.add(slot)
            self._stale = True  # time alone is no reason for another number

    def note_step(self, drafts: int, seconds: float) -> None:
        self._costs.of(self._width).note(drafts, seconds)
        for slot in self._slots:
            self._estimates[slot].step(drafts)
        self._pooled.step(drafts)

    def speeds(self) -> list[float]:
        """Expected tokens a second of all slots with 0, 1, … drafts."""
        costs = self._costs.of(self._width)
        nothing = [1.0] * (self.most + 1)
        tokens = [
            nothing if slot in self._given_up else self._estimates[slot].tokens()
            for slot in self._slots
        ]
        return [sum(column) / costs.of(k) for k, column in enumerate(zip(*tokens, strict=True))]

    def _choose(self) -> None:
        speeds = self.speeds()
        best = speeds.index(max(speeds))
        self._stale = False
        margin = MARGIN if self._drafts else WAKE_MARGIN
        if best != self._drafts and speeds[best] > (1 + margin) * speeds[self._drafts]:
            if not best:
                self._waited, self._wait = 0, FIRST_WAIT
            self._drafts = best
        self._far = speeds[self._drafts] > CLEAR_GAIN * speeds[0]

    def _rest(self) -> StepPlan:
        if self._judged:
            hopeless = [slot for slot in self._slots if self._is_hopeless(slot)]
            for _ in hopeless:
                self._skip = self._to_skip = min(2 * self._skip + 1, MOST_SKIPPED)
            self._given_up.update(hopeless)
            self._judged.clear()
        self._waited += 1
        if self._waited < self._wait:
            return StepPlan(0, False, given_up=self._given_up)
        self._waited, self._wait = 0, min(2 * self._wait, LONGEST_WAIT)
        return StepPlan(0, True, given_up=self._given_up)

    def _is_hopeless(self, slot: int) -> bool:
        share = self._costs.keep_up_share(self._width)
        if slot not in self._judged or share < DEAR_KEEP_UP:
            return False
        costs = self._costs.of(self._width)
        seconds = [costs.of(drafts) for drafts in range(self.most + 1)]
        return self._estimates[slot].gain(seconds) < LEAST_HOPE * share

    def _depth(self, slot: int) -> int:
        """Drafts of one slot in a step of ``self._drafts``."""
        if slot in self._given_up:
            return 0
        tokens = self._estimates[slot].tokens()
        chances = [after - before for before, after in pairwise(tokens[: self._drafts + 1])]
        return max(sum(chance >= LEAST_CHANCE for chance in chances), 1)
