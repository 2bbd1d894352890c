"""One request on its way through a service."""

from __future__ import annotations

from collections.abc import Callable

from selfdraft.runtime.request import Request
from selfdraft.runtime.run import Run
from selfdraft.runtime.serving.events import ServiceEvent, Timing

OnEvent = Callable[[ServiceEvent], None]
"""Called on the service's thread, in order: keep it short, and hand over to other threads."""


class Ticket:
    """A request that was taken in. ``cancel`` may be called from any thread, at any time, repeatedly."""

    def __init__(
        self,
        number: int,
        run: Run,
        *,
        on_event: OnEvent,
        submitted_at: float,
        timeout_s: float | None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.number = number
        self.run = run
        self.on_event = on_event
        self.submitted_at = submitted_at
        self.timeout_s = timeout_s
        self.started_at: float | None = None
        """When a slot took it in."""
        self.first_token_at: float | None = None
        self.slot: int | None = None
        self.admitted = False
        """Whether the slot's record is its own."""
        self.finished = False
        """Whether the last event was made."""
        self.cancelled = False
        """Somebody asked for its end; it comes before the next step."""
        self._wake = wake

    @property
    def request(self) -> Request:
        return self.run.request

    def cancel(self) -> None:
        """End the request before the next step; ``Finished`` still comes. Of no effect afterwards."""
        self.cancelled = True
        self._wake()

    @property
    def num_tokens(self) -> int:
        """Tokens that its slot has to hold before the first one is drawn."""
        return len(self.request.prompt_ids) + len(self.request.resumed_token_ids)

    def timing(self, now: float) -> Timing:
        """Its times, should it end ``now``."""
        first = self.first_token_at
        return Timing(
            waited_s=(now if self.started_at is None else self.started_at) - self.submitted_at,
            first_token_s=None if first is None else first - self.submitted_at,
            total_s=now - self.submitted_at,
        )
