"""Decode steps at given lengths on filled caches: sparse, dense and speculative, interleaved."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from selfdraft.cli.filled_backend import FilledBackend
from selfdraft.cli.measure import SLOT, Series
from selfdraft.cli.synthetic_cache import Content, filled_cache
from selfdraft.manifest import capacity_for
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.sampling import SamplingParams

if TYPE_CHECKING:
    from selfdraft.cli.console import OnStage
    from selfdraft.runtime.backend import Backend
    from selfdraft.runtime.slot_cache import SlotCache

Attention = Literal["dense", "sparse"]
BASE_ROWS = 64
"""Cached rows of the step that stands for everything but attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledOptions:
    """What to measure."""

    contexts: tuple[int, ...]
    """Tokens of cache and reply together at the end of a run."""
    attentions: tuple[Attention, ...]
    drafts: tuple[int, ...] = ()
    """Beside plain decoding; they need ``forced_acceptance``."""
    tokens: int = 16
    """Tokens of a run."""
    repeats: int = 3
    warmup: int = 1
    forced_acceptance: tuple[float, ...] | None = None
    content: Content = field(default_factory=Content)


@dataclass(slots=True, kw_only=True)
class FilledSeries:
    """Steps of one context, attention and number of drafts."""

    context: int
    attention: Attention
    series: Series
    steps_blocks: list[tuple[int, ...]] = field(default_factory=list)
    """Of each counted step: blocks that each sparse layer read; empty for a dense bundle."""

    @property
    def step_ms(self) -> float:
        """Median of the counted steps."""
        return float(np.median(self.series.step_s)) * 1e3

    @property
    def blocks_read(self) -> tuple[int, ...]:
        """Median of each sparse layer."""
        return (
            tuple(int(n) for n in np.median(self.steps_blocks, axis=0)) if self.has_blocks else ()
        )

    @property
    def has_blocks(self) -> bool:
        """Whether the bundle has sparse layers at all."""
        return bool(self.steps_blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runner:
    """One series with its loop, ready for the next turn."""

    measured: FilledSeries
    loop: DecodeLoop
    backend: FilledBackend
    request: Request

    def turn(self, *, counted: bool) -> None:
        """From the filled cache to the end of a run."""
        self.loop.begin({SLOT: self.request})
        self.backend.blocks_read.clear()
        series = self.measured.series
        while self.loop.active:
            engine, started = self.backend.seconds, time.perf_counter()
            self.loop.step()
            elapsed = time.perf_counter() - started
            if counted:
                series.step_s.append(elapsed)
                series.engine_s.append(self.backend.seconds - engine)
        if counted:
            series.rounds.append([self.loop.result(SLOT)])
            self.measured.steps_blocks += self.backend.blocks_read


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledResult:
    """Every series in the order of the options, and the steps without a context to speak of."""

    measured: list[FilledSeries]
    base: dict[int, FilledSeries]
    """By number of drafts: steps over ``BASE_ROWS`` cached rows."""


def measure_filled(
    backend: Backend, options: FilledOptions, *, on_stage: OnStage | None = None
) -> FilledResult:
    """Fill a cache for each context, then run everything in turns.

    The order is turned round with every round, so that a drift of the clock meets all alike.
    """
    report = on_stage or (lambda stage, done, total: None)
    base_context = BASE_ROWS + options.tokens + 1
    base = list(_runners(backend, options, base_context, ("dense",)))
    runners: list[_Runner] = []
    for done, context in enumerate(options.contexts):
        report("filling", done, len(options.contexts))
        runners += _runners(backend, options, context, options.attentions)
    rounds = options.warmup + options.repeats
    for index in range(rounds):
        in_order = [*base, *runners]
        for runner in in_order if index % 2 == 0 else reversed(in_order):
            runner.turn(counted=index >= options.warmup)
        report("measuring", index + 1, rounds)
    return FilledResult(
        measured=[runner.measured for runner in runners],
        base={runner.measured.series.drafts: runner.measured for runner in base},
    )


def _runners(
    backend: Backend, options: FilledOptions, context: int, attentions: tuple[Attention, ...]
) -> Iterator[_Runner]:
    """Plain decoding and every number of drafts, by attention, over one filled cache."""
    states = backend.allocate(batch=1, capacity=capacity_for(context))
    length = context - options.tokens - 1
    cache = filled_cache(backend, states, length=length, content=options.content)
    for attention in attentions:
        for drafts in dict.fromkeys((0, *options.drafts)):
            filled = FilledBackend(backend, states, attend_all=attention == "dense")
            loop = DecodeLoop(
                filled,
                drafts=drafts,
                context_length=context,
                prefill_attention=attention,
                forced_acceptance=options.forced_acceptance if drafts else None,
            )
            loop.restore(SLOT, dataclasses.replace(cache, prefill=attention))
            measured = FilledSeries(
                context=context, attention=attention, series=Series(drafts=drafts)
            )
            request = _request(cache, options)
            yield _Runner(measured=measured, loop=loop, backend=filled, request=request)


def _request(cache: SlotCache, options: FilledOptions) -> Request:
    return Request(
        prompt_ids=cache.tokens,
        sampling=SamplingParams(temperature=0.0),
        max_tokens=options.tokens,
        ignore_eos=True,
    )
