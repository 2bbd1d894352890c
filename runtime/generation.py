"""Generating token by token: an iterator over a loop that ends in a record."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from selfdraft.errors import ConfigError
from selfdraft.runtime.backend import Backend
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.prefill import OnProgress
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import GenerationResult, TokenEvent
from selfdraft.runtime.sampling import SamplingParams

if TYPE_CHECKING:
    from typing_extensions import Self


class Generation(Iterator[TokenEvent]):
    """Tokens of one or more requests as they are delivered; ``result`` when done or closed.

    Nothing runs before the first token is asked for. ``close`` (or leaving a ``with`` block, or an
    error) ends the requests early and leaves the loop ready for the next ones, with its caches.
    """

    def __init__(
        self,
        loop: DecodeLoop,
        requests: Mapping[int, Request],
        *,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._loop = loop
        self._requests = dict(requests)
        self._on_progress = on_progress
        self._ready: deque[TokenEvent] = deque()
        self._begun = False
        self._records: dict[int, GenerationResult] | None = None

    def __next__(self) -> TokenEvent:
        while not self._ready:
            if self._records is not None:
                raise StopIteration
            try:
                self._advance()
            except BaseException:
                self.close()
                raise
        return self._ready.popleft()

    def close(self) -> None:
        """End what is unfinished; the loop can take the next request."""
        self._ready.clear()
        if self._records is not None:
            return
        if self._begun:
            for slot in self._requests:
                self._loop.cancel(slot)
            self._collect()
        else:
            self._records = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def results(self) -> dict[int, GenerationResult]:
        """Records by slot. Raises ``ConfigError`` before the end, and when nothing ran."""
        if not self._records:
            raise ConfigError(
                "the generation has no result yet", hint="take its tokens first, or close it"
            )
        return self._records

    @property
    def result(self) -> GenerationResult:
        """The record of a generation with a single request."""
        (record,) = self.results.values()
        return record

    def _advance(self) -> None:
        if not self._begun:
            if self._loop.active:
                raise ConfigError(
                    "the loop is in the middle of another generation", hint="close that one first"
                )
            self._ready += self._loop.begin(self._requests, on_progress=self._on_progress)
            self._begun = True
        elif self._loop.active:
            self._ready += self._loop.step()
        else:
            self._collect()

    def _collect(self) -> None:
        self._records = {slot: self._loop.result(slot) for slot in self._requests}


def generate(
    backend: Backend,
    prompt_ids: Sequence[int],
    params: SamplingParams | None = None,
    *,
    max_tokens: int | None = None,
    stop_token_ids: Sequence[int] = (),
    drafts: int | None = None,
    context_length: int | None = None,
    prefill_rows: int | None = None,
) -> Generation:
    """Continue one prompt on a loop of its own.

    Iterate for ``TokenEvent``, then read ``result``. For more options, several turns or several
    prompts use ``Request`` and ``DecodeLoop``. Errors: those of the two.
    """
    request = Request(
        prompt_ids=tuple(prompt_ids),
        sampling=params or SamplingParams(),
        max_tokens=max_tokens,
        stop_token_ids=tuple(stop_token_ids),
    )
    loop = DecodeLoop(
        backend, drafts=drafts, context_length=context_length, prefill_rows=prefill_rows
    )
    return Generation(loop, {0: request})


def generate_batch(
    backend: Backend,
    requests: Sequence[Request],
    *,
    drafts: int | None = None,
    context_length: int | None = None,
    prefill_rows: int | None = None,
) -> Generation:
    """Continue several prompts together; events and ``results`` carry the request's index."""
    loop = DecodeLoop(
        backend,
        batch=len(requests),
        drafts=drafts,
        context_length=context_length,
        prefill_rows=prefill_rows,
    )
    return Generation(loop, dict(enumerate(requests)))
