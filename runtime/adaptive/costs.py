"""What a step costs by its number of drafts: measured at load, corrected by every step."""

from __future__ import annotations

from collections.abc import Sequence

from selfdraft.runtime.adaptive.acceptance import expected_tokens

SLOWEST_RATE = 1 / 32
"""Share of a new step in its running average, once there are enough."""
CLIP = 1.5
"""A step this many times slower or quicker than expected counts as that: hiccups are no news."""
SHARED_WEIGHT = 2.0
"""Steps that the drift of all steps is worth, for a number of drafts that ran seldom."""
FADE = 1 - 1 / 1024
LEAST_GAIN = 1.2
"""Speed of drafting by plain decoding, were every draft accepted, from which the head is worth running."""


class StepCosts:
    """Seconds of a step with K = 0, 1, … drafts, everything included: drafts, passes and the host.

    ``seconds[K]`` as measured at load. Later steps correct them: each K by its own steps, and by the
    drift that all share where it ran seldom (contexts grow, clocks change).
    """

    def __init__(self, seconds: Sequence[float]) -> None:
        assert seconds and min(seconds) > 0
        self._base = tuple(seconds)
        self._ratios = [1.0] * len(seconds)
        self._counts = [-1.0] * len(seconds)
        self._shared = 1.0
        self._num_shared = 0.0

    @property
    def most(self) -> int:
        """The largest number of drafts."""
        return len(self._base) - 1

    @property
    def seconds(self) -> tuple[float, ...]:
        """As measured at load."""
        return self._base

    def note(self, drafts: int, seconds: float) -> None:
        """A step with so many drafts took ``seconds``. The first one of each number sets up buffers and is skipped."""
        self._counts = [
            max(count * FADE, count - 1) if count > 0 else count for count in self._counts
        ]
        if self._counts[drafts] < 0:
            self._counts[drafts] = 0.0
            return
        seen = seconds / self._base[drafts]
        self._ratios[drafts] = _nearer(self._ratios[drafts], seen, self._counts[drafts])
        self._shared = _nearer(self._shared, seen, self._num_shared)
        self._counts[drafts] += 1
        self._num_shared += 1

    def of(self, drafts: int) -> float:
        """Seconds of a step with so many drafts."""
        count = max(self._counts[drafts], 0.0)
        own = self._ratios[drafts] * count + self._shared * SHARED_WEIGHT
        return self._base[drafts] * own / (count + SHARED_WEIGHT)

    @property
    def pays(self) -> bool:
        """Whether drafts could ever gain enough to make up for keeping the head's cache."""
        best = max((drafts + 1) / self.of(drafts) for drafts in range(self.most + 1))
        return best * self.of(0) >= LEAST_GAIN

    @property
    def break_even(self) -> float:
        """The rate, alike at all positions, from which some number of drafts beats none; above 1: none does."""
        return min((self._break_even(drafts) for drafts in range(1, self.most + 1)), default=2.0)

    def _break_even(self, drafts: int) -> float:
        wanted = self.of(drafts) / self.of(0)
        if wanted > drafts + 1:
            return 2.0
        low, high = 0.0, 1.0
        for _ in range(20):
            middle = (low + high) / 2
            gains = expected_tokens([middle] * drafts)[-1] >= wanted
            low, high = (low, middle) if gains else (middle, high)
        return high


def _nearer(value: float, seen: float, count: float) -> float:
    limited = min(max(seen, value / CLIP), value * CLIP)
    return value + max(SLOWEST_RATE, 1 / (count + 2)) * (limited - value)
