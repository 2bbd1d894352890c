"""How a service stands, for health checks and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.memory import available_bytes, peak_rss_bytes
from selfdraft.runtime.serving.events import Outcome
from selfdraft.runtime.serving.ticket import Ticket
from selfdraft.runtime.telemetry.meter import Snapshot


@dataclass(slots=True)
class Counters:
    """What a scheduler counts."""

    prompt: int = 0
    reused: int = 0
    generated: int = 0
    steps: int = 0
    refused: int = 0
    finished: Counter[Outcome] = field(default_factory=Counter)


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


def take_snapshot(
    loop: DecodeLoop,
    counters: Counters,
    *,
    waiting: Sequence[Ticket],
    running: Mapping[int, Ticket],
    step_s: float | None,
    closing: bool,
    alive: bool,
) -> ServiceSnapshot:
    """Numbers of now. The loop may be at work on another thread."""
    cached = sum(loop.num_cached(slot) for slot in running)
    return ServiceSnapshot(
        slots=loop.batch,
        running=len(running),
        prefilling=sum(ticket.first_token_at is None for ticket in running.values()),
        waiting=len(waiting),
        waiting_tokens=sum(ticket.num_tokens for ticket in waiting),
        context_length=loop.context_length,
        cached_tokens=cached,
        cache_use=cached / (loop.batch * loop.context_length),
        state_bytes=loop.state_bytes,
        peak_rss_bytes=peak_rss_bytes(),
        available_bytes=available_bytes(),
        prompt_tokens=counters.prompt,
        reused_tokens=counters.reused,
        generated_tokens=counters.generated,
        steps=counters.steps,
        finished=dict(counters.finished),
        refused=counters.refused,
        step_ms=None if step_s is None else 1e3 * step_s,
        closing=closing,
        alive=alive,
        telemetry=loop.telemetry.snapshot() if loop.telemetry else None,
    )
