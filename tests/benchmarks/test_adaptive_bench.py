"""The text that adaptive drafting is measured on, and the clock of its replies."""

from __future__ import annotations

import argparse

from benchmarks import adaptive, telemetry_cost


def test_workload_is_easy_then_random_then_both_in_turns() -> None:
    rates = adaptive.workload(100, 256)
    assert rates(100) == rates(355) == adaptive.EASY
    assert rates(356) == rates(611) == adaptive.RANDOM
    late = [rates(612 + i) for i in range(256)]
    assert late.count(adaptive.EASY) == late.count(adaptive.RANDOM) == 128


def test_time_between_tokens_is_interpolated_within_a_step() -> None:
    track = adaptive.Track(tokens=[0, 2, 3], seconds=[0.0, 1.0, 3.0], drafts=[1, 0])
    assert track.between(0, 3) == 3.0
    assert track.between(1, 2) == 0.5


def test_cost_of_telemetry_is_a_record() -> None:
    (found,) = telemetry_cost.measure(argparse.Namespace(rounds=1))
    assert found["name"] == "telemetry" and found["us_a_step"]["median"] > 0
