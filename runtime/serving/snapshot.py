"""How a service stands, for health checks and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from selfdraft.runtime.serving.events import Outcome
from selfdraft.runtime.telemetry.meter import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSnapshot:
    """Numbers of one moment; the counters only grow."""

    slots: int
    running: int
    """Requests in slots, those whose prompt is being computed included."""
    prefilling: int
    """Of these, those that have no token yet."""
    waiting: int
    """Requests in the queue."""
    waiting_tokens: int
    """Tokens of their prompts."""
    context_length: int
    """Tokens that a slot holds at most."""
    cached_tokens: int
    """Tokens in the caches of slots at work."""
    cache_use: float
    """``cached_tokens`` by all that the slots hold, 0 to 1."""
    state_bytes: int
    """Caches of all slots."""
    peak_rss_bytes: int | None
    available_bytes: int | None
    """Memory that the system could still give; None where it does not say."""
    prompt_tokens: int
    """Tokens of prompts that were taken in, in all."""
    reused_tokens: int
    """Of these, found in a cache."""
    generated_tokens: int
    """Tokens delivered, in all."""
    steps: int
    """Decode steps, in all."""
    finished: Mapping[Outcome, int]
    """Requests that ended, in all."""
    refused: int
    """Requests that met a full queue, in all."""
    step_ms: float | None
    """Running mean of a decode step."""
    closing: bool
    """No new request is taken in."""
    alive: bool
    """The worker thread runs."""
    telemetry: Snapshot | None
