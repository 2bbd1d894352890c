"""How likely the next drafts are accepted, from the verdicts of late."""

from __future__ import annotations

import math
from collections.abc import Sequence

HALF_LIFE = 48.0
"""Verdicts on a draft position after which an older one counts half."""
FAST_HALF_LIFE = 3.0
UNSEEN_HALF_LIFE = 64.0
"""Steps after which what is known of a position that is no longer drafted counts half."""
PRIOR_RATE = 0.8
PRIOR_WEIGHT = 4.0
"""Verdicts that the guess for a position (the rate of the one before it) is worth."""
JUMP, JUMP_SIGMA = 0.35, 2.2
"""A short average this far from the long one, and so many standard deviations of it, means that the text
changed."""
KEPT_AT_JUMP = 6.0
"""Verdicts that are kept of the time before."""


class AcceptanceEstimate:
    """Rates of each draft position, given that every draft before it was accepted.

    Old verdicts fade. A position that was never drafted is taken to be as good as the one before it,
    and one that was not drafted for long drifts there: deeper chains are tried again now and then.
    """

    def __init__(self, depth: int, *, prior: Sequence[float] = ()) -> None:
        """``prior``: rates to begin with, e.g. of the bundle's baseline."""
        self._weights = [0.0] * depth
        self._hits = [0.0] * depth
        for place, rate in enumerate(prior[:depth]):
            self._weights[place], self._hits[place] = KEPT_AT_JUMP, rate * KEPT_AT_JUMP
        self._fast = Average(FAST_HALF_LIFE)

    def note(self, accepted: int, *, rejected: bool) -> None:
        """One chain: its first ``accepted`` drafts were accepted, and the next one rejected or not judged."""
        for place in range(min(accepted + rejected, len(self._weights))):
            self._add(place, float(place < accepted))
        if accepted or rejected:
            self._fast.add(float(accepted > 0))
            if self._fast.settled and self._jumped():
                self.restart(self._fast.value)

    def fade(self, drafts: int) -> None:
        """A step drafted so many tokens: what is known of later positions gets older."""
        factor = 0.5 ** (1 / UNSEEN_HALF_LIFE)
        for place in range(drafts, len(self._weights)):
            self._weights[place] *= factor
            self._hits[place] *= factor

    def restart(self, first_rate: float) -> None:
        """The text changed: the first position has ``first_rate``, the others are little known."""
        self._hits[0], self._weights[0] = first_rate * KEPT_AT_JUMP, KEPT_AT_JUMP
        for place in range(1, len(self._weights)):
            factor = min(1.0, 1.0 / max(self._weights[place], 1e-9))
            self._hits[place] *= factor
            self._weights[place] *= factor

    @property
    def rates(self) -> list[float]:
        """Chance of each draft, given those before it."""
        rates, before = [], PRIOR_RATE
        for place in range(len(self._weights)):
            before = self._rate(place, before)
            rates.append(before)
        return rates

    def _jumped(self) -> bool:
        rate = self._rate(0, PRIOR_RATE)
        spread = math.sqrt(rate * (1 - rate) * self._fast.variance)
        return abs(self._fast.value - rate) > max(JUMP, JUMP_SIGMA * spread)

    def _rate(self, place: int, guess: float) -> float:
        return (self._hits[place] + PRIOR_WEIGHT * guess) / (self._weights[place] + PRIOR_WEIGHT)

    def _add(self, place: int, hit: float) -> None:
        factor = 0.5 ** (1 / HALF_LIFE)
        self._weights[place] = self._weights[place] * factor + 1.0
        self._hits[place] = self._hits[place] * factor + hit


class Average:
    """A mean in which older values fade."""

    def __init__(self, half_life: float) -> None:
        self._factor: float = 0.5 ** (1 / half_life)
        self._settled_at = half_life
        self._weight = self._sum = 0.0

    def add(self, value: float) -> None:
        self._weight = self._weight * self._factor + 1.0
        self._sum = self._sum * self._factor + value

    @property
    def variance(self) -> float:
        """Of the mean of many independent values, by that of one."""
        return (1 - self._factor) / (1 + self._factor)

    @property
    def settled(self) -> bool:
        """It rests on as many values as its half-life."""
        return self._weight >= self._settled_at

    @property
    def value(self) -> float:
        return self._sum / self._weight


def expected_tokens(rates: Sequence[float]) -> list[float]:
    """Tokens of a step with 0, 1, … ``len(rates)`` drafts: one, and each draft if all before it pass."""
    totals, chance = [1.0], 1.0
    for rate in rates:
        chance *= rate
        totals.append(totals[-1] + chance)
    return totals
