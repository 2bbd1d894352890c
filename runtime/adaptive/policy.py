"""How many drafts the next step verifies."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from selfdraft.runtime.adaptive.acceptance import AcceptanceEstimate, expected_tokens
from selfdraft.runtime.adaptive.costs import StepCosts

MARGIN = 0.005
"""Another number of drafts must promise so much more speed before it is taken."""
DWELL = 2
"""Steps that a number of drafts is kept at least."""
FIRST_WAIT, LONGEST_WAIT = 8, 32
"""Steps without drafts until the head catches up and its next draft is compared; doubled each time."""
PLAIN_EVERY = 96
"""Steps with drafts between two without any, which show what plain decoding would cost by now."""
SHORT_SPELL = 48
"""Drafting for so few steps was a false start: the next rest begins with the longest wait."""
WAKE_ODDS = 10.0
"""Drafting starts again when the verdicts are so many times likelier under a rate that pays."""


class StepPlan(NamedTuple):
    """What the head does in one step."""

    drafts: int
    """Drafts of each slot at most."""
    resync: bool
    """The head catches up with the target, which drafts need; without it, rows are kept for later."""


class DraftPolicy(Protocol):
    """Decides on the drafts of each step; whatever it does, no token changes.

    ``most``: the largest number it ever asks for. ``when_drawn``: the fixed number for ``rejection``, whose
    seeds repeat tokens with the same drafts only. ``clock``: seconds, what its steps are timed with.
    """

    @property
    def most(self) -> int: ...

    @property
    def when_drawn(self) -> int: ...

    @property
    def clock(self) -> Callable[[], float]: ...

    def plan(self) -> StepPlan:
        """What the next step does."""
        ...

    def note_chain(self, accepted: int, *, rejected: bool) -> None:
        """The verdict on one slot's chain: ``accepted`` drafts, and whether the next one was rejected.

        In a step without drafts it is the verdict on the one draft that was only compared.
        """
        ...

    def note_step(self, drafts: int, seconds: float) -> None:
        """A step with so many drafts took ``seconds``."""
        ...


class FixedDrafts:
    """The same number of drafts in every step."""

    def __init__(self, drafts: int) -> None:
        self.most = self.when_drawn = drafts
        self.clock = time.perf_counter
        self._plan = StepPlan(drafts, True)

    def plan(self) -> StepPlan:
        return self._plan

    def note_chain(self, accepted: int, *, rejected: bool) -> None:
        pass

    def note_step(self, drafts: int, seconds: float) -> None:
        pass


class AdaptiveDrafts:
    """The number of drafts with the most expected tokens a second.

    Expected tokens come from the running acceptance of each position, seconds from ``costs``, which every
    step corrects; now and then one has no drafts, to keep that figure true. Where no
    number of drafts beats plain decoding, it rests: steps have no drafts, and the head catches up every
    ``FIRST_WAIT`` to ``LONGEST_WAIT`` steps. Its draft is then compared with the token that the target
    draws, at no further cost; a hit starts single drafts, and a sequential test (Wald, 1945) of a rate that
    pays against one that does not ends the rest or the trial.
    """

    def __init__(
        self,
        costs: StepCosts,
        *,
        prior: Sequence[float] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``prior``: acceptance of each position to begin with, given those before it."""
        self.clock = clock
        self.when_drawn = min(1, costs.most)
        self._costs = costs
        self._estimate = AcceptanceEstimate(costs.most, prior=prior)
        self._kept = 0
        self._awake = SHORT_SPELL
        self._since_plain = PLAIN_EVERY * 3 // 4
        self._resting = False
        self._evidence = 0.0
        self._trial = [0, 0]
        self._waited, self._wait = 0, FIRST_WAIT
        self._drafts = max(1, self._best()) if costs.most else 0

    @property
    def most(self) -> int:
        return self._costs.most

    @property
    def drafts(self) -> int:
        """Drafts of the next step; 0 while it rests."""
        return 0 if self._resting else self._drafts

    @property
    def rates(self) -> list[float]:
        """Running acceptance of each position, given those before it."""
        return self._estimate.rates

    def plan(self) -> StepPlan:
        if not self._resting:
            self._since_plain += 1
            if self._since_plain <= PLAIN_EVERY:
                return StepPlan(self._drafts, True)
            self._since_plain = 0
            return StepPlan(0, False)
        if self._evidence > 0:
            return StepPlan(1, True)
        self._waited += 1
        if self._waited < self._wait:
            return StepPlan(0, False)
        self._waited, self._wait = 0, min(2 * self._wait, LONGEST_WAIT)
        return StepPlan(0, True)

    def note_chain(self, accepted: int, *, rejected: bool) -> None:
        if self._resting:
            if accepted or rejected:
                self._weigh(accepted > 0)
        else:
            self._estimate.note(accepted, rejected=rejected)

    def note_step(self, drafts: int, seconds: float) -> None:
        self._costs.note(drafts, seconds)
        if self._resting or not drafts:
            return
        self._estimate.fade(drafts)
        self._kept += 1
        self._awake += 1
        if self._kept >= DWELL:
            self._choose()

    def speeds(self) -> list[float]:
        """Expected tokens a second with 0, 1, … drafts."""
        tokens = expected_tokens(self._estimate.rates)
        return [count / self._costs.of(drafts) for drafts, count in enumerate(tokens)]

    def _best(self) -> int:
        speeds = self.speeds()
        return speeds.index(max(speeds))

    def _choose(self) -> None:
        speeds = self.speeds()
        best = speeds.index(max(speeds))
        if best == self._drafts or speeds[best] <= (1 + MARGIN) * speeds[self._drafts]:
            return
        self._kept = 0
        if best:
            self._drafts = best
        else:
            self._rest()

    def _rest(self) -> None:
        self._resting = True
        self._evidence, self._trial = 0.0, [0, 0]
        self._waited, self._wait = 0, FIRST_WAIT if self._awake > SHORT_SPELL else LONGEST_WAIT

    def _weigh(self, hit: bool) -> None:
        """One more draft was compared or tried while resting."""
        even = self._costs.break_even
        if even >= 0.99:
            return  # no rate pays
        pays, loses = (1 + even) / 2, even / 2
        gain = math.log(pays / max(loses, 0.01)) if hit else math.log((1 - pays) / (1 - loses))
        self._evidence += gain
        self._trial[0] += hit
        self._trial[1] += 1
        if self._evidence <= 0:
            self._evidence, self._trial = 0.0, [0, 0]
        elif self._evidence >= math.log(WAKE_ODDS):
            hits, tried = self._trial
            self._resting, self._drafts, self._kept, self._awake = False, 1, 0, 0
            self._estimate.restart((hits + 1) / (tried + 2))
