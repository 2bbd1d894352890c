"""Whether there is room for one more request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.memory import available_bytes
from selfdraft.runtime.request import Request
from selfdraft.runtime.serving.options import ServingOptions

Available = Callable[[], int | None]
FIRST_GUESS_S = 1.0
FADE = 0.8


class Admission:
    """Says what is short, if anything, and guesses when it will not be."""

    def __init__(
        self, loop: DecodeLoop, options: ServingOptions, *, available: Available = available_bytes
    ) -> None:
        self._loop, self._options, self._available = loop, options, available
        self._reply_s: float | None = None
        self._most_cached = [0] * loop.batch
        """Tokens that each slot's cache has held at most: so much memory is taken already."""

    def shortage(
        self, request: Request, *, waiting: Sequence[Request], running: Sequence[Request]
    ) -> str | None:
        """What is short for ``request`` beside those that wait and run; None: it can be taken in."""
        options, free = self._options, self._loop.batch - len(running)
        if len(waiting) >= options.max_waiting + free:
            return f"{len(waiting)} requests wait already, {len(running)} run"
        if options.max_waiting_tokens is not None and len(waiting) >= free:
            tokens = sum(len(one.prompt_ids) for one in (*waiting[free:], request))
            if tokens > options.max_waiting_tokens:
                return f"prompts of {tokens} tokens would wait, {options.max_waiting_tokens} may"
        return self._memory_shortage([*running, *waiting, request])

    def note_reply(self, slot: int, seconds: float) -> None:
        """A request held ``slot`` for so long."""
        tokens = len(self._loop.tokens(slot))
        self._most_cached[slot] = max(self._most_cached[slot], tokens)
        known = seconds if self._reply_s is None else self._reply_s
        self._reply_s = FADE * known + (1 - FADE) * seconds

    def retry_after_s(self, num_waiting: int) -> float:
        """A guess of when those that wait now have begun."""
        each = FIRST_GUESS_S if self._reply_s is None else self._reply_s
        return max(FIRST_GUESS_S, each * max(num_waiting, 1) / self._loop.batch)

    def _memory_shortage(self, requests: Sequence[Request]) -> str | None:
        """Memory that the caches of ``requests`` may come to take, where it is not taken from the start."""
        if not self._loop.caches_grow:
            return None
        available = self._available()
        if available is None:
            return None
        needs = sorted((self._tokens(one) for one in requests), reverse=True)
        used = sorted(self._most_cached, reverse=True)
        growth = sum(max(need - had, 0) for need, had in zip(needs, used, strict=False))
        needed = int(
            growth * self._loop.state_bytes / (self._loop.batch * self._loop.context_length)
        )
        if available - needed >= self._options.memory_floor_bytes:
            return None
        return f"caches may grow by {needed >> 20} MiB, {available >> 20} MiB of memory are free"

    def _tokens(self, request: Request) -> int:
        """Tokens that a slot may come to hold for it."""
        most = self._loop.context_length
        if request.max_tokens is None:
            return most
        return min(len(request.prompt_ids) + request.max_tokens, most)
