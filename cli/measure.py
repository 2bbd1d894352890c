"""Measuring decoding: plain and speculative on the same prompts, interleaved."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from selfdraft.cli.timed_backend import TimedBackend
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import GenerationResult

if TYPE_CHECKING:
    from selfdraft.cli.console import OnStage
    from selfdraft.cli.session import Session

SLOT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """One comparison: plain decoding and each number of drafts."""

    drafts: tuple[int, ...]
    repeats: int = 3
    """Counted rounds; each answers every request once."""
    warmup: int = 1
    warmup_s: float = 0.0
    """Rounds before those go on for this long at least: clocks and caches settle."""
    forced_acceptance: tuple[float, ...] | None = None


@dataclass(slots=True, kw_only=True)
class Series:
    """Everything measured for one number of drafts."""

    drafts: int
    step_s: list[float] = field(default_factory=list)
    """Seconds of each decode step."""
    engine_s: list[float] = field(default_factory=list)
    """Of those, seconds inside the backend."""
    rounds: list[list[GenerationResult]] = field(default_factory=list)
    prefill_tok_per_s: float | None = None
    """Of the first run, whose prompt is in no cache yet."""
    ttft_s: float | None = None
    """Of that run: until its first token."""
    spans: list[tuple[float, float]] = field(default_factory=list)
    """Decoding of each counted run, from and to, in seconds of ``time.monotonic``."""

    @property
    def results(self) -> list[GenerationResult]:
        """Every counted run."""
        return [result for results in self.rounds for result in results]

    @property
    def tok_per_s(self) -> list[float]:
        """Decode speed of each round."""
        return [
            sum(len(r.tokens) - 1 for r in results) / sum(r.decode_s for r in results)
            for results in self.rounds
        ]

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step delivered on average."""
        return sum(len(r.tokens) - 1 for r in self.results) / sum(r.steps for r in self.results)

    @property
    def acceptance(self) -> list[tuple[int, int]]:
        """``(drafted, accepted)`` at each draft position, over all runs."""
        drafted = [sum(c) for c in zip(*(r.drafted for r in self.results), strict=True)]
        accepted = [sum(c) for c in zip(*(r.accepted for r in self.results), strict=True)]
        return list(zip(drafted, accepted, strict=True))


def compare(
    session: Session,
    requests: Sequence[Request],
    options: MeasureOptions,
    *,
    context: int,
    on_stage: OnStage,
) -> list[Series]:
    """Run plain decoding and every ``options.drafts``, in turns; one series each, plain first.

    A loop keeps a prompt in its caches, so repeating a single request computes no prompt. The
    order is turned round with every round, so that a drift of the clock meets all alike.
    ``requests`` must give at least one reply of two tokens.
    """
    runners = []
    for drafts in dict.fromkeys((0, *options.drafts)):
        forced = options.forced_acceptance if drafts else None
        backend = TimedBackend(session.backend)
        loop = session.loop(
            timed=True, drafts=drafts, context=context, forced_acceptance=forced, backend=backend
        )
        runners.append((Series(drafts=drafts), loop, backend))
    turn, started = 0, time.monotonic()
    while turn < options.warmup or time.monotonic() - started < options.warmup_s:
        _turn(runners, requests, turn=turn, counted=False)
        turn += 1
        on_stage("warming up", turn, max(turn, options.warmup))
    for done in range(options.repeats):
        _turn(runners, requests, turn=turn + done, counted=True)
        on_stage("measuring", done + 1, options.repeats)
    return [series for series, _, _ in runners]


Runner = tuple[Series, DecodeLoop, TimedBackend]


def _turn(
    runners: Sequence[Runner], requests: Sequence[Request], *, turn: int, counted: bool
) -> None:
    """Every series once; odd turns go the other way."""
    for series, loop, backend in runners if turn % 2 == 0 else reversed(runners):
        _round(series, loop, backend, requests, counted=counted)


def _round(
    series: Series,
    loop: DecodeLoop,
    backend: TimedBackend,
    requests: Sequence[Request],
    *,
    counted: bool,
) -> None:
    """Every request once."""
    results = [_run(series, loop, backend, request, counted=counted) for request in requests]
    if series.prefill_tok_per_s is None:
        series.prefill_tok_per_s = results[0].prefill_tok_per_s
    if counted:
        series.rounds.append(results)


def _run(
    series: Series, loop: DecodeLoop, backend: TimedBackend, request: Request, *, counted: bool
) -> GenerationResult:
    """Prefill of what is not cached, then steps to the end."""
    asked = time.perf_counter()
    loop.begin({SLOT: request})
    if series.ttft_s is None:
        series.ttft_s = time.perf_counter() - asked
    decoding = time.monotonic()
    while loop.active:
        engine_before, started = backend.seconds, time.perf_counter()
        loop.step()
        elapsed = time.perf_counter() - started
        if counted:
            series.step_s.append(elapsed)
            series.engine_s.append(backend.seconds - engine_before)
    if counted:
        series.spans.append((decoding, time.monotonic()))
    return loop.result(SLOT)


def spread(values: Sequence[float], *, scale: float = 1.0) -> dict[str, float]:
    """Median, 10th and 90th percentile of ``values * scale``."""
    p10, median, p90 = np.percentile(np.asarray(values) * scale, [10, 50, 90])
    return {"median": float(median), "p10": float(p10), "p90": float(p90)}
