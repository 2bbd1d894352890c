"""What a served request is told, and the errors that only serving knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from selfdraft.errors import ToolkitError
from selfdraft.runtime.result import GenerationResult, TokenEvent

Outcome = Literal["done", "cancelled", "timed_out", "failed"]
"""The reply came to its end; it was given up; its time ran out; an error ended it."""


class Overloaded(ToolkitError):
    """There is no room for one more request now; ``retry_after_s`` is a guess of when there is."""

    exit_code = 4

    def __init__(self, problem: str, *, retry_after_s: float) -> None:
        super().__init__(problem, hint=f"try again in {retry_after_s:.0f} s, or send fewer at once")
        self.retry_after_s = retry_after_s


class Closing(ToolkitError):
    """The service takes no new requests: it is shutting down."""

    def __init__(self) -> None:
        super().__init__("the service is shutting down", hint="send the request to another one")


class TimedOut(ToolkitError):
    """A request waited or ran for longer than it may."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, hint="allow it more time, or send fewer requests at once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one request on the service's clock."""

    waited_s: float
    """In the queue, until a slot took it in or it was given up."""
    first_token_s: float | None
    """From ``submit`` to the first token; None where there was none."""
    total_s: float
    """From ``submit`` to the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Last event of every request, exactly one."""

    outcome: Outcome
    result: GenerationResult | None
    """The reply, whole or as far as it came; None where no slot took the request in."""
    error: Exception | None
    """Why it timed out or failed (``ToolkitError`` where a user can mend it); else None."""
    timing: Timing


ServiceEvent = TokenEvent | Finished
