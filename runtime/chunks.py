"""A reply in chunks: so many tokens at a time, or whole sentences; it can be stopped at a border.

What was stopped can go on later, in this process or another one: ``ChunkedReply.resumption`` is the
request for the rest, and the caches of the slot stay (``DecodeLoop.slot_cache``). Where a chunk ends
depends on its tokens alone, not on how many of them a step delivered.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import NamedTuple

from selfdraft.errors import ConfigError
from selfdraft.runtime.generation import Generation
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.prefill import OnProgress
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import GenerationResult, TokenEvent

SENTENCES = "sentence"

_SENTENCE_END = re.compile(r"(?:[.!?…]+[\"'”’»)\]]*\s|[。！？]|\n)\s*$")
"""A full stop counts when white space follows; the CJK ones and a line's end count at once."""


class Chunk(NamedTuple):
    """Some tokens of a reply, in order, and their text.

    The last one has what a stop string that might have been had held back, perhaps without a token.
    """

    events: tuple[TokenEvent, ...]
    text: str


class ChunkedReply(Iterator[Chunk]):
    """Chunks of one reply; ``stop`` after any of them, ``result`` at the end.

    ``every``: tokens of a chunk, or ``"sentence"``, for which the loop needs a tokenizer. A chunk of
    sentences ends with the first token whose text ends one, the white space behind it included.
    """

    def __init__(
        self,
        loop: DecodeLoop,
        request: Request,
        *,
        every: int | str,
        slot: int = 0,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._every = checked_border(every)
        if every == SENTENCES and not loop.has_text:
            raise ConfigError(
                "sentences are texts, and this loop has no tokenizer",
                hint="give DecodeLoop the bundle's tokenizer, or a number of tokens",
            )
        self._loop, self._request, self._slot = loop, request, slot
        self._generation = Generation(loop, {slot: request}, on_progress=on_progress)
        self._num_tokens = 0
        self._num_chars = 0

    def __next__(self) -> Chunk:
        events: list[TokenEvent] = []
        text = ""
        for event in self._generation:
            events.append(event)
            text += event.text
            if self._is_border(len(events), text):
                break
        else:
            text += (self.result.text or "")[self._num_chars + len(text) :]
        if not events and not text:
            raise StopIteration
        self._num_tokens += len(events)
        self._num_chars += len(text)
        return Chunk(tuple(events), text)

    def stop(self) -> None:
        """End the reply behind the last chunk taken; the slot holds nothing beyond it."""
        self._loop.cut(self._slot, self._num_tokens)
        self._generation.close()

    @property
    def result(self) -> GenerationResult:
        """The record, once the reply has ended or was stopped."""
        return self._generation.result

    @property
    def resumption(self) -> Request:
        """The request for the rest of a stopped reply, which goes on as if never stopped.

        Raises ``ConfigError`` for a reply that came to its end.
        """
        result = self.result
        if result.finish_reason != "closed":
            raise ConfigError(
                f"the reply has ended ({result.finish_reason})", hint="there is nothing to resume"
            )
        return dataclasses.replace(
            self._request,
            sampling=dataclasses.replace(self._request.sampling, seed=result.seed),
            resumed_token_ids=(*self._request.resumed_token_ids, *result.tokens),
        )

    def _is_border(self, num_tokens: int, text: str) -> bool:
        if isinstance(self._every, int):
            return num_tokens >= self._every
        return _SENTENCE_END.search(text) is not None


def checked_border(every: int | str) -> int | str:
    """``every`` where it is a number of tokens or ``"sentence"``. Raises ``ConfigError``."""
    if every == SENTENCES or (isinstance(every, int) and every >= 1):
        return every
    raise ConfigError(
        f"chunks of {every!r} are unknown", hint=f"give a number of tokens, or {SENTENCES}"
    )
