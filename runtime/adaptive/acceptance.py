"""How likely the next drafts are accepted, from the verdicts of late."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import mul

LEVELS = (0.02, 0.07, 0.14, 0.25, 0.37, 0.5, 0.63, 0.75, 0.84, 0.9, 0.94, 0.97, 0.99)
"""Rates of a first draft that are told apart."""
CHANGES = 0.003
"""Chance that the text becomes another one in a step: of any level."""
START_RATE, START_WEIGHT = 0.8, 4.0
"""Where it begins without a baseline, and the verdicts that this is worth."""
BASELINE_WEIGHT = 6.0
BASELINE_SHARE = 0.5
"""Share of new texts that are like the baseline; the others may have any level."""
LOST_WEIGHT = 8.0
"""Verdicts that the guess for what a position loses (nothing by default) is worth."""
MOST_VERDICTS = 48.0
UNSEEN_HALF_LIFE = 64.0
"""Steps after which what is known of a position that is no longer drafted counts half."""
TABLE_EVERY = 8
"""Steps at least between two looks at what later positions lose."""
LEAST_VARIANCE = 0.12
MOST_LOST, MOST_GAINED = 8.0, 1.0


class AcceptanceEstimate:
    """Belief about the text at hand, and with it about every draft position.

    A hidden Markov model: a text has a level (the rate of a first draft), which in every step stays or,
    with chance ``CHANGES``, becomes any other. Each verdict weighs the levels (forward algorithm: Rabiner, A
    Tutorial on Hidden Markov Models, 1989, III.A), so two rejections in a row count much where few were, and a
    mixture of levels is priced as one: a deep chain is worth trying while the text may be an easy one. Later
    positions differ from the one before by log-odds that are learnt slowly; one that is no longer drafted
    drifts back to the guess, so deeper chains are tried again now and then.
    """

    def __init__(self, depth: int, *, prior: Sequence[float] = ()) -> None:
        """``prior``: rates to begin with, given the position before, e.g. of the bundle's baseline."""
        even = [1 / len(LEVELS)] * len(LEVELS)
        self._new_text = even
        """Levels of a text that the one at hand becomes."""
        self._belief = _around(START_RATE, START_WEIGHT)
        if prior:
            self._belief = _around(prior[0], BASELINE_WEIGHT)
            shares = (1 - BASELINE_SHARE, BASELINE_SHARE)
            self._new_text = [
                shares[0] * any_level + shares[1] * alike
                for any_level, alike in zip(even, self._belief, strict=True)
            ]
        odds = [_log_odds(rate) for rate in prior[:depth]]
        self._guess = [min(after - before, 0.0) for before, after in pairwise(odds)]
        self._guess += [0.0] * (depth - 1 - len(self._guess))
        self._shift = list(self._guess)
        """Log-odds of positions 1, 2, … less those of the one before."""
        self._verdicts = [0.0] * len(self._shift)
        self._unseen = [0] * len(self._shift)
        self._depth = depth
        self._since_belief = self._since_table = 0
        """Steps that belief and tables do not know of yet."""
        self._fill_tables()

    def note(self, accepted: int, *, rejected: bool) -> None:
        """One chain: its first ``accepted`` drafts were accepted, and the next one rejected or not judged."""
        accepted = min(accepted, self._depth)
        rejected = rejected and accepted < self._depth
        self._age()
        table = self._rejected if rejected else self._passed
        belief = list(map(mul, self._belief, table[accepted]))
        total = sum(belief)
        self._belief = [share / total for share in belief]
        for place in range(1, accepted + rejected):
            self._learn(place, float(place < accepted))

    def step(self, drafts: int) -> None:
        """A step passed, with so many drafts: the text may have changed since."""
        self._since_belief += 1
        self._since_table += 1
        for index in range(max(drafts - 1, 0), self._depth - 1):
            self._unseen[index] += 1

    @property
    def rates(self) -> list[float]:
        """Chance of each draft, given those before it."""
        chances = [after - before for before, after in pairwise(self.tokens())]
        return [after / before for before, after in pairwise([1.0, *chances])]

    def gain(self, costs: Sequence[float]) -> float:
        """What drafts would gain by plain decoding, by its speed, were the level of the text known.

        ``costs``: seconds of a step with 0, 1, … drafts. No less than 0: where they lose there are none.
        """
        self._age()
        total = 0.0
        for share, *chances in zip(self._belief, *self._passed, strict=True):
            tokens = accumulate(chances)
            best = max(count / cost for count, cost in zip(tokens, costs, strict=True))
            total += share * (best * costs[0] - 1)
        return total

    def tokens(self) -> list[float]:
        """Expected tokens of a step with 0, 1, … drafts: one, and each draft if all before it pass."""
        self._age()
        return list(accumulate(sum(map(mul, self._belief, chances)) for chances in self._passed))

    def _age(self) -> None:
        """Take in the steps since the last look: all at once, since steps are many and looks are few."""
        if self._since_belief:
            stays = (1 - CHANGES) ** self._since_belief
            self._since_belief = 0
            self._belief = [
                stays * share + (1 - stays) * new
                for share, new in zip(self._belief, self._new_text, strict=True)
            ]
        if self._since_table >= TABLE_EVERY:
            self._since_table = 0
            self._forget()
            self._fill_tables()

    def _learn(self, place: int, hit: float) -> None:
        """Move the log-odds of a position towards its verdict, by Newton's step over so many verdicts."""
        rate = sum(map(mul, self._belief, self._rates[place]))
        index = place - 1
        self._verdicts[index] = min(self._verdicts[index] + 1, MOST_VERDICTS)
        slope = max(rate * (1 - rate), LEAST_VARIANCE) * (self._verdicts[index] + LOST_WEIGHT)
        moved = self._shift[index] + (hit - rate) / slope
        self._shift[index] = min(max(moved, -MOST_LOST), MOST_GAINED)

    def _forget(self) -> None:
        for index, steps in enumerate(self._unseen):
            if steps:
                kept = 0.5 ** (steps / UNSEEN_HALF_LIFE)
                self._verdicts[index] *= kept
                guess = self._guess[index]
                self._shift[index] = guess + (self._shift[index] - guess) * kept
                self._unseen[index] = 0

    def _fill_tables(self) -> None:
        """What each level means, ``[depth or depth + 1][levels]``; changes too slowly for every step."""
        odds = [_log_odds(level) for level in LEVELS]
        self._rates = [list(LEVELS)] if self._depth else []
        """Rate of each position."""
        for shift in self._shift:
            odds = [one + shift for one in odds]
            self._rates.append([1 / (1 + math.exp(-one)) for one in odds])
        self._passed = [[1.0] * len(LEVELS)]
        """Chance that so many drafts pass, and that exactly so many do before one fails."""
        for rates in self._rates:
            self._passed.append(list(map(mul, self._passed[-1], rates)))
        self._rejected = [
            [before - after for before, after in zip(*pair, strict=True)]
            for pair in pairwise(self._passed)
        ]


def expected_tokens(rates: Sequence[float]) -> list[float]:
    """Tokens of a step with 0, 1, … ``len(rates)`` drafts: one, and each draft if all before it pass."""
    totals, chance = [1.0], 1.0
    for rate in rates:
        chance *= rate
        totals.append(totals[-1] + chance)
    return totals


def _around(rate: float, weight: float) -> list[float]:
    """Belief about the levels after ``weight`` verdicts of which ``rate`` were good."""
    shares = [level ** (weight * rate) * (1 - level) ** (weight * (1 - rate)) for level in LEVELS]
    return [share / sum(shares) for share in shares]


def _log_odds(rate: float) -> float:
    rate = min(max(rate, 0.01), 0.99)
    return math.log(rate / (1 - rate))
