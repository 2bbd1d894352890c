"""Measuring decoding: plain and speculative on the same prompt, interleaved."""

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
from selfdraft.runtime.sampling import SamplingParams

if TYPE_CHECKING:
    from selfdraft.cli.console import OnStage
    from selfdraft.cli.session import Session

SLOT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """One comparison: plain decoding and each number of drafts."""

    drafts: tuple[int, ...]
    tokens: int
    """Tokens of each run; end tokens do not end it."""
    repeats: int = 3
    warmup: int = 1
    forced_acceptance: tuple[float, ...] | None = None
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.0))


@dataclass(slots=True, kw_only=True)
class Series:
    """Everything measured for one number of drafts."""

    drafts: int
    step_s: list[float] = field(default_factory=list)
    """Seconds of each decode step."""
    engine_s: list[float] = field(default_factory=list)
    """Of those, seconds inside the backend."""
    results: list[GenerationResult] = field(default_factory=list)
    prefill_tok_per_s: float | None = None

    @property
    def tok_per_s(self) -> list[float]:
        """Decode speed of each run."""
        return [r.decode_tok_per_s for r in self.results if r.decode_tok_per_s is not None]

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
    prompt_ids: Sequence[int],
    options: MeasureOptions,
    *,
    context: int,
    on_stage: OnStage,
) -> list[Series]:
    """Run plain decoding and every ``options.drafts``, in turns; one series each, plain first.

    Each loop keeps the prompt in its caches, so a repeat computes no prompt. The order is turned
    round with every repeat, so that a drift of the clock meets all alike.
    """
    request = Request(
        prompt_ids=tuple(prompt_ids),
        sampling=options.sampling,
        max_tokens=options.tokens,
        ignore_eos=True,
    )
    runners = []
    for drafts in dict.fromkeys((0, *options.drafts)):
        forced = options.forced_acceptance if drafts else None
        backend = TimedBackend(session.backend)
        loop = session.loop(
            drafts=drafts, context=context, forced_acceptance=forced, backend=backend
        )
        runners.append((Series(drafts=drafts), loop, backend))
    rounds = options.warmup + options.repeats
    for turn in range(rounds):
        for series, loop, backend in runners if turn % 2 == 0 else reversed(runners):
            _run(series, loop, backend, request, counted=turn >= options.warmup)
        on_stage("measuring", turn + 1, rounds)
    return [series for series, _, _ in runners]


def _run(
    series: Series, loop: DecodeLoop, backend: TimedBackend, request: Request, *, counted: bool
) -> None:
    """One run: prefill of what is not cached, then steps to the end."""
    loop.begin({SLOT: request})
    while loop.active:
        engine_before, started = backend.seconds, time.perf_counter()
        loop.step()
        elapsed = time.perf_counter() - started
        if counted:
            series.step_s.append(elapsed)
            series.engine_s.append(backend.seconds - engine_before)
    result = loop.result(SLOT)
    if series.prefill_tok_per_s is None:
        series.prefill_tok_per_s = result.prefill_tok_per_s
    if counted:
        series.results.append(result)


def spread(values: Sequence[float], *, scale: float = 1.0) -> dict[str, float]:
    """Median, 10th and 90th percentile of ``values * scale``."""
    p10, median, p90 = np.percentile(np.asarray(values) * scale, [10, 50, 90])
    return {"median": float(median), "p10": float(p10), "p90": float(p90)}
