"""Contenders take turns, and the figures are those of the timed steps alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks import timing
from benchmarks.speedup import expected_tokens, speedup
from benchmarks.timing import Samples, Schedule, block_ratios, ratio, take_turns

QUICK = Schedule(rounds=3, steps=4, warmup=2, pause_s=0.0)


class Recorder:
    """A contender that notes its calls in a list shared with others; its steps deliver 2 tokens."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name, self._log = name, log

    def prepare(self) -> None:
        self._log.append(f"{self._name}!")

    def step(self) -> int:
        self._log.append(self._name)
        return 2


def samples(*blocks: Sequence[float], tokens: int = 0) -> Samples:
    return Samples(step_s=tuple(tuple(block) for block in blocks), tokens=tokens)


def test_every_block_prepares_and_warms_up_and_the_order_turns_round() -> None:
    log: list[str] = []
    found = take_turns({"a": Recorder("a", log), "b": Recorder("b", log)}, QUICK)
    block_a, block_b = ["a!", *"aaaaaa"], ["b!", *"bbbbbb"]
    assert log == [*block_a, *block_b, *block_b, *block_a, *block_a, *block_b]
    assert {name: entry.num_steps for name, entry in found.items()} == {"a": 12, "b": 12}
    assert found["a"].tokens_per_step == 2


def test_only_the_timed_steps_enter_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(clock)))
    found = take_turns({"a": Recorder("a", [])}, QUICK)
    assert found["a"].step_s == ((1.0,) * 4,) * 3
    assert next(clock) == 24


def test_a_ratio_compares_medians_and_ignores_an_outlier() -> None:
    slow, fast = samples([2.0, 2.0, 2.0, 90.0]), samples([1.0, 1.0, 1.0, 1.0])
    assert ratio(slow, fast) == 2.0
    assert slow.median_ms == 2000.0


def test_block_ratios_pair_neighbours_so_that_drift_cancels() -> None:
    slow, fast = samples([2.0], [20.0], [200.0]), samples([1.0], [10.0], [100.0])
    assert block_ratios(slow, fast) == (2.0, 2.0, 2.0)


def test_expected_tokens_multiply_the_rates_along_the_chain() -> None:
    assert expected_tokens(()) == 1.0
    assert expected_tokens((0.87,)) == pytest.approx(1.87)
    assert expected_tokens((0.87, 0.7)) == pytest.approx(1 + 0.87 + 0.87 * 0.7)


def test_speedup_is_tokens_by_time_whatever_the_coin_gave() -> None:
    plain, speculative = samples([1.0], tokens=1), samples([1.5], tokens=1)
    assert speedup(plain, speculative, (0.5,)) == pytest.approx(1.0)
