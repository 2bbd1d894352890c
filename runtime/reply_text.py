"""The text of one reply, token by token, up to a stop string.

Text that may be the beginning of a stop string is held back, and so are the tokens that begin in
it: text, tokens and their log-probabilities end at the same place, and nothing that was delivered
is taken back. Where a reply ends does not depend on how its text is cut into tokens: the first
character that completes a stop string ends it; of several, the longest counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from selfdraft.runtime.text_stream import TextStream
from selfdraft.runtime.tokenizer import Tokenizer


class _Span(NamedTuple):
    """Where the text of a token lies: the characters before it, and up to its end."""

    begin: int
    end: int


class ReplyText:
    """Cuts the text of a reply at stop strings, and says which tokens can be delivered.

    ``stops`` are not empty. A stop string that is complete within the first ``min_tokens`` tokens
    does not count. ``keep_stop`` leaves the stop string in the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        *,
        min_tokens: int = 0,
        keep_stop: bool = False,
    ) -> None:
        self._stream = TextStream(tokenizer)
        self._stops = tuple(stops)
        self._min_tokens = min_tokens
        self._keep_stop = keep_stop
        self._num_tokens = 0
        self._length = 0
        """Characters that are certain, held ones included."""
        self._held = ""
        """The last of them, which were not delivered yet."""
        self._waiting: list[_Span] = []
        """Tokens that were not delivered yet."""
        self._skipped = 0
        """Of those, tokens that an earlier run delivered."""
        self.matched: str | None = None
        """The stop string that ended the text."""

    def skip(self, token_ids: Iterable[int]) -> None:
        """Take in tokens that an earlier run delivered, and the text that it delivered with them."""
        for token in token_ids:
            self.push(token)
        # The earlier run knew what followed, and could deliver these.
        self._skipped = len(self._waiting)

    def push(self, token: int, *, last: bool = False, silent: bool = False) -> list[str]:
        """Add a token; the text of each token, in order, that can be delivered now.

        ``last``: no token follows, so nothing is held back. ``silent``: the token ends the reply
        and is no part of its text. Where ``matched`` is set afterwards the reply has ended, and
        the tokens that begin behind the end of its text are never delivered.
        """
        delta = "" if silent else self._stream.push((token,))
        if last:
            delta += self._stream.finish()
        self._num_tokens += 1
        self._waiting.append(_Span(self._length, self._length + len(delta)))
        self._length += len(delta)
        old, self._held = len(self._held), self._held + delta
        if delta and self._num_tokens > self._min_tokens:
            self._match(old)
        texts = self._release(last=last)
        dropped = min(self._skipped, len(texts))
        self._skipped -= dropped
        return texts[dropped:]

    def _release(self, *, last: bool) -> list[str]:
        everything = self.matched is None and (last or not self._stops)
        certain = self._length
        if self.matched is None and not everything:
            certain -= self._possible_stop()
        texts: list[str] = []
        for span in self._waiting:
            if not everything and span.begin >= certain:
                break
            texts.append(self._take(min(span.end, certain)))
        del self._waiting[: len(texts)]
        return texts

    def rest(self) -> str:
        """Text of delivered tokens that was held back, when the reply has ended or is given up here.

        A stop string that begins behind it, in a token that is never delivered, leaves some too.
        """
        end = self._waiting[0].begin if self._waiting else self._length
        text = self._take(min(end, self._length))
        ended = self._waiting or self.matched is not None
        return text if ended else text + self._stream.finish()

    def _take(self, end: int) -> str:
        """The text that is not delivered yet, up to character ``end``."""
        count = max(len(self._held) - (self._length - end), 0)
        text, self._held = self._held[:count], self._held[count:]
        return text

    def _match(self, old: int) -> None:
        """Look for a stop string that ends among the held characters from ``old`` on."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            begin = self._held.find(stop, max(old - len(stop) + 1, 0))
            if begin >= 0:
                found = (begin + len(stop), begin, stop)
                best = min(best, found) if best else found
        if best is None:
            return
        end, begin, self.matched = best
        cut = end if self._keep_stop else begin
        self._length -= len(self._held) - cut
        self._held = self._held[:cut]

    def _possible_stop(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        held = self._held
        return max(
            (
                count
                for stop in self._stops
                for count in range(1, min(len(stop) - 1, len(held)) + 1)
                if held.endswith(stop[:count])
            ),
            default=0,
        )
