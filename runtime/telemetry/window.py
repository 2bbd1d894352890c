"""Steps and replies of the last minutes, exactly: what is older is taken out again."""

from __future__ import annotations

from collections import deque

from selfdraft.runtime.telemetry.counts import Histogram, Key
from selfdraft.runtime.thinking_record import ThinkingRecord


class Window:
    """Histograms of the steps of the last ``seconds``: a step at t counts while now - t < seconds.

    Some 100 bytes a step are kept: 6 MB for five minutes of 200 steps a second.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.histograms: dict[Key, Histogram] = {}
        self._steps: deque[tuple[float, Histogram, int, int]] = deque()
        self._replies: deque[tuple[float, ThinkingRecord]] = deque()

    def add(self, now: float, key: Key, accepted: int, tokens: int) -> None:
        """A step of this kind accepted so many drafts and drew so many tokens."""
        histogram = self.histograms.get(key)
        if histogram is None:
            histogram = self.histograms[key] = Histogram(key.drafts)
        histogram.steps[accepted] += 1
        histogram.tokens += tokens
        self._steps.append((now, histogram, accepted, tokens))
        if self._steps[0][0] <= now - self.seconds:
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
        while steps and steps[0][0] <= border:
            _, histogram, accepted, tokens = steps.popleft()
            histogram.steps[accepted] -= 1
            histogram.tokens -= tokens
        while replies and replies[0][0] <= border:
            replies.popleft()
