"""Fair step times: contenders take turns in one process, and medians are compared.

The turns are blocks of steps. Each engine keeps its own threads, which spin for a while after a
run; a pause and untimed steps at the start of each block keep one engine off the other's cores.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Contender(Protocol):
    """Something with a decode step."""

    def prepare(self) -> None:
        """Go to the start of a block (untimed): the same cached length every time."""
        ...

    def step(self) -> int:
        """One decode step; the tokens it delivered."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long to measure."""

    rounds: int = 12
    """Blocks of each contender."""
    steps: int = 16
    """Timed steps of a block."""
    warmup: int = 3
    """Untimed steps at the start of each block."""
    pause_s: float = 0.02
    """Rest between blocks; threads of the engine before stop spinning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Times of one contender, in the order of measurement."""

    step_s: tuple[tuple[float, ...], ...]
    """Seconds of each timed step, block by block."""
    tokens: int
    """Delivered in all timed steps."""

    @property
    def num_steps(self) -> int:
        return sum(len(block) for block in self.step_s)

    @property
    def median_ms(self) -> float:
        return self._percentile_ms(50)

    @property
    def p10_ms(self) -> float:
        return self._percentile_ms(10)

    @property
    def p90_ms(self) -> float:
        return self._percentile_ms(90)

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.num_steps

    def _percentile_ms(self, percent: float) -> float:
        values = [value for block in self.step_s for value in block]
        return float(np.percentile(values, percent)) * 1e3

    def summary(self) -> dict[str, float]:
        """Rounded figures for a record."""
        return {
            "median_ms": round(self.median_ms, 4),
            "p10_ms": round(self.p10_ms, 4),
            "p90_ms": round(self.p90_ms, 4),
            "steps": self.num_steps,
            "tokens_per_step": round(self.tokens_per_step, 4),
        }


def take_turns(
    contenders: Mapping[str, Contender], schedule: Schedule | None = None
) -> dict[str, Samples]:
    """Times of every contender; the order turns round from block to block."""
    schedule = schedule or Schedule()
    names = list(contenders)
    blocks: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
    tokens = dict.fromkeys(names, 0)
    for index in range(schedule.rounds):
        for name in names if index % 2 == 0 else reversed(names):
            times, delivered = _block(contenders[name], schedule)
            blocks[name].append(times)
            tokens[name] += delivered
    return {name: Samples(step_s=tuple(blocks[name]), tokens=tokens[name]) for name in names}


def _block(contender: Contender, schedule: Schedule) -> tuple[tuple[float, ...], int]:
    time.sleep(schedule.pause_s)
    contender.prepare()
    for _ in range(schedule.warmup):
        contender.step()
    times, delivered = [], 0
    for _ in range(schedule.steps):
        start = time.perf_counter()
        delivered += contender.step()
        times.append(time.perf_counter() - start)
    return tuple(times), delivered


def ratio(numerator: Samples, denominator: Samples) -> float:
    """Median step time of the one by that of the other."""
    return numerator.median_ms / denominator.median_ms


def block_ratios(numerator: Samples, denominator: Samples) -> tuple[float, float, float]:
    """Quartiles of the ratio of neighbouring blocks' medians: how far the figure can be trusted."""
    pairs = zip(numerator.step_s, denominator.step_s, strict=True)
    ratios = [float(np.median(a) / np.median(b)) for a, b in pairs]
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    return float(low), float(middle), float(high)
