"""How many drafts the next step verifies."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from selfdraft.runtime.adaptive.acceptance import AcceptanceEstimate
from selfdraft.runtime.adaptive.costs import StepCosts

MARGIN = 0.005
"""Another number of drafts must promise so much more speed before it is taken."""
FIRST_WAIT, LONGEST_WAIT = 4, 32
"""Steps without drafts until the head catches up and its next draft is compared; doubled each time."""
PLAIN_EVERY = 96
"""Steps with drafts between two without any, which show what plain decoding would cost by now."""
CLEAR_GAIN, SELDOM = 1.5, 4
"""Where drafts promise so many times the speed of plain decoding, such steps are so many times rarer."""


class StepPlan(NamedTuple):
    """What the head does in one step."""

    drafts: int
    """Drafts of each slot at most."""
    resync: bool
    """The head catches up with the target, which drafts need; without it, rows are kept for later."""
    depths: Mapping[int, int] | None = None
    """Drafts of single slots, where they differ; none is above ``drafts``."""

    given_up: Collection[int] = ()
    """Slots whose head keeps up no more, and drafts nothing, until another request begins there."""

    def depth_of(self, slot: int) -> int:
        """Drafts of ``slot``."""
        return self.drafts if self.depths is None else self.depths.get(slot, self.drafts)


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


@runtime_checkable
class BatchPolicy(Protocol):
    """A ``DraftPolicy`` that knows the slots; what differs is said here."""

    @property
    def most(self) -> int: ...

    @property
    def when_drawn(self) -> int: ...

    @property
    def clock(self) -> Callable[[], float]: ...

    def begin(self, slot: int) -> None:
        """A new request begins in ``slot``."""
        ...

    def plan(self, slots: Sequence[int], *, width: int) -> StepPlan:
        """What the next step does, whose passes run over ``width`` slots, those at work among them."""
        ...

    def note_chain(self, slot: int, accepted: int, *, rejected: bool) -> None:
        """The verdict on the chain of ``slot``."""
        ...

    def note_step(self, drafts: int, seconds: float) -> None:
        """The step planned last had so many drafts and took ``seconds``."""
        ...


class AllSlots:
    """A policy for all slots alike."""

    def __init__(self, policy: DraftPolicy) -> None:
        self.policy = policy
        self.most, self.when_drawn, self.clock = policy.most, policy.when_drawn, policy.clock

    def begin(self, slot: int) -> None:
        pass

    def plan(self, slots: Sequence[int], *, width: int) -> StepPlan:
        return self.policy.plan()

    def note_chain(self, slot: int, accepted: int, *, rejected: bool) -> None:
        self.policy.note_chain(accepted, rejected=rejected)

    def note_step(self, drafts: int, seconds: float) -> None:
        self.policy.note_step(drafts, seconds)


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

    Expected tokens come from the belief about the text at hand (``AcceptanceEstimate``), seconds from ``costs``,
    which every step corrects; now and then one has no drafts, to keep that figure true. Where no number
    of drafts beats plain decoding, it rests: steps have no drafts, and the head catches up every
    ``FIRST_WAIT`` to ``LONGEST_WAIT`` steps. Its draft is then compared with the token that the target
    draws, at no further cost, and is a verdict as any other.
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
        self._plain_due = PLAIN_EVERY
        self._resting = self._judged = False
        self._waited, self._wait = 0, FIRST_WAIT
        self._speeds = self.speeds()
        self._drafts = max(1, _best(self._speeds)) if costs.most else 0

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
        if self._resting:
            self._waited += 1
            if self._waited < self._wait:
                return StepPlan(0, False)
            self._waited, self._wait = 0, min(2 * self._wait, LONGEST_WAIT)
            return StepPlan(0, True)
        far = self._speeds[self._drafts] > CLEAR_GAIN * self._speeds[0]
        self._plain_due -= 1 if far else SELDOM
        if self._plain_due > 0:
            return StepPlan(self._drafts, True)
        self._plain_due = SELDOM * PLAIN_EVERY
        return StepPlan(0, False)

    def note_chain(self, accepted: int, *, rejected: bool) -> None:
        if accepted or rejected:
            self._estimate.note(accepted, rejected=rejected)
            self._judged = True

    def note_step(self, drafts: int, seconds: float) -> None:
        self._costs.note(drafts, seconds)
        self._estimate.step(drafts)
        if self._judged:  # time alone is no reason for another number
            self._speeds = self.speeds()
            self._choose()
        self._judged = False

    def speeds(self) -> list[float]:
        """Expected tokens a second with 0, 1, … drafts."""
        tokens = self._estimate.tokens()
        return [count / self._costs.of(drafts) for drafts, count in enumerate(tokens)]

    def _choose(self) -> None:
        speeds, best = self._speeds, _best(self._speeds)
        if best == self.drafts or speeds[best] <= (1 + MARGIN) * speeds[self.drafts]:
            return
        self._resting = best == 0
        if self._resting:
            self._waited, self._wait = 0, FIRST_WAIT
        else:
            self._drafts = best


def _best(speeds: Sequence[float]) -> int:
    return speeds.index(max(speeds))
