"""Steps and replies of the last minutes, exactly: what is older is taken out again."""

from __future__ import annotations

from array import array
from collections import deque

from selfdraft.runtime.telemetry.counts import Histogram, Key
from selfdraft.runtime.thinking_record import ThinkingRecord

BLOCK_STEPS = 1024
"""Steps that are kept in one piece of memory, and given back together."""


class Window:
    """Histograms of the steps of the last ``seconds``: a step at t counts while now - t < seconds.

    Some 12 bytes a step are kept, a time and the number of what happened: 3.6 MB for five minutes of
    1,000 steps a second.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.histograms: dict[Key, Histogram] = {}
        self._numbers: dict[tuple[Key, int, int], int] = {}
        self._kinds: list[tuple[Histogram, int, int]] = []
        """What can happen in a step, by its number: few kinds, whatever the number of steps."""
        self._steps = _Steps()
        self._replies: deque[tuple[float, ThinkingRecord]] = deque()

    def __len__(self) -> int:
        """Steps in it."""
        return len(self._steps)

    def add(self, now: float, key: Key, accepted: int, tokens: int) -> None:
        """A step of this kind accepted so many drafts and drew so many tokens."""
        number = self._numbers.get((key, accepted, tokens))
        if number is None:
            number = self._new_kind(key, accepted, tokens)
        histogram = self._kinds[number][0]
        histogram.steps[accepted] += 1
        histogram.tokens += tokens
        self._steps.append(now, number)
        if self._steps.oldest <= now - self.seconds:
            self.expire(now)

    def add_reply(self, now: float, record: ThinkingRecord) -> None:
        """A reply with a thinking budget ended."""
        self._replies.append((now, record))

    @property
    def replies(self) -> list[ThinkingRecord]:
        """Records of the replies in the window."""
        return [record for _, record in self._replies]

    def expire(self, now: float) -> None:
        """Take out what is too old."""
        border, steps, replies = now - self.seconds, self._steps, self._replies
        while len(steps) and steps.oldest <= border:
            histogram, accepted, tokens = self._kinds[steps.popleft()]
            histogram.steps[accepted] -= 1
            histogram.tokens -= tokens
        while replies and replies[0][0] <= border:
            replies.popleft()

    def _new_kind(self, key: Key, accepted: int, tokens: int) -> int:
        histogram = self.histograms.get(key)
        if histogram is None:
            histogram = self.histograms[key] = Histogram(key.drafts)
        number = self._numbers[key, accepted, tokens] = len(self._kinds)
        self._kinds.append((histogram, accepted, tokens))
        return number


class _Steps:
    """A queue of (seconds, number) in blocks of plain memory, no object for each."""

    def __init__(self) -> None:
        self._blocks: deque[tuple[array[float], array[int]]] = deque()
        self._first = 0
        """Steps of the oldest block that are out already."""
        self._length = 0
        self.oldest = 0.0
        """Seconds of the step that leaves next; only where there is one."""

    def __len__(self) -> int:
        return self._length

    def append(self, seconds: float, number: int) -> None:
        blocks = self._blocks
        if not blocks or len(blocks[-1][0]) == BLOCK_STEPS:
            blocks.append((array("d"), array("I")))
        times, numbers = blocks[-1]
        times.append(seconds)
        numbers.append(number)
        if not self._length:
            self.oldest = seconds
        self._length += 1

    def popleft(self) -> int:
        times, numbers = self._blocks[0]
        number = numbers[self._first]
        self._first += 1
        self._length -= 1
        if self._first == len(times):
            self._blocks.popleft()
            self._first = 0
        if self._length:
            self.oldest = self._blocks[0][0][self._first]
        return number
