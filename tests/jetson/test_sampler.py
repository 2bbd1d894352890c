"""The sampling thread: cheap, complete, honest about errors; and energy from its samples."""

from __future__ import annotations

import threading
import time

import pytest

from selfdraft.jetson.sample import BoardSample, RailPower
from selfdraft.jetson.sampler import Sampler, TimedSample, energy_joules, next_interval_s


def watts(at_s: float, power_w: float | None) -> TimedSample:
    rails = () if power_w is None else (RailPower(name="VDD_IN", now_mw=round(power_w * 1e3)),)
    return TimedSample(at_s=at_s, sample=BoardSample(rails=rails))


def busy(seconds: float) -> None:
    """Use up CPU time, not wall time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.mark.parametrize(
    ("interval_s", "cost_s", "expected"), [(1.0, 0.001, 1.0), (0.1, 0.002, 0.2), (0.1, 0.0, 0.1)]
)
def test_interval_stretches_until_sampling_costs_its_limit(
    interval_s: float, cost_s: float, expected: float
) -> None:
    assert next_interval_s(interval_s, cost_s=cost_s) == pytest.approx(expected)


def test_costly_samples_are_taken_seldom() -> None:
    def read() -> BoardSample:
        busy(0.004)
        return BoardSample()

    with Sampler(read, interval_s=0.001, cpu_limit=0.05) as sampler:
        time.sleep(0.5)
    # 0.08 s between samples instead of 0.001: about 7, and the one at the end.
    assert 1 <= len(sampler.samples) <= 12
    assert 0 < sampler.cpu_share < 0.25


def test_sampler_takes_one_sample_at_once_and_one_at_the_end() -> None:
    taken = threading.Event()

    def read() -> BoardSample:
        taken.set()
        return BoardSample()

    sampler = Sampler(read, interval_s=60.0).start()
    assert taken.wait(10.0)
    sampler.stop()
    assert len(sampler.samples) in (1, 2)
    first, last = sampler.samples[0], sampler.samples[-1]
    assert last.at_s >= first.at_s


def test_error_of_a_sample_is_raised_by_stop() -> None:
    def read() -> BoardSample:
        raise OSError("gone")

    sampler = Sampler(read).start()
    with pytest.raises(OSError, match="gone"):
        sampler.stop()


def test_nothing_sampled_costs_nothing() -> None:
    assert Sampler(BoardSample).cpu_share == 0.0


def test_energy_of_constant_power_is_power_times_time() -> None:
    samples = [watts(0.0, 10.0), watts(1.0, 10.0), watts(2.0, 10.0)]
    assert energy_joules(samples, start_s=0.5, end_s=1.75) == pytest.approx(12.5)


def test_power_between_samples_is_a_straight_line() -> None:
    samples = [watts(0.0, 0.0), watts(2.0, 20.0), watts(3.0, 20.0)]
    assert energy_joules(samples, start_s=0.0, end_s=3.0) == pytest.approx(40.0)
    assert energy_joules(samples, start_s=1.0, end_s=2.0) == pytest.approx(15.0)


def test_power_outside_the_samples_is_that_of_the_nearest() -> None:
    samples = [watts(1.0, 10.0), watts(2.0, 20.0)]
    assert energy_joules(samples, start_s=0.0, end_s=1.0) == pytest.approx(10.0)
    assert energy_joules(samples, start_s=2.0, end_s=4.0) == pytest.approx(40.0)


def test_energy_is_unknown_without_power() -> None:
    assert energy_joules([], start_s=0.0, end_s=1.0) is None
    assert energy_joules([watts(0.0, None)], start_s=0.0, end_s=1.0) is None
    assert energy_joules([watts(0.0, 1.0)], start_s=2.0, end_s=1.0) is None
