"""Baseline records: buckets, rates, Wilson's interval, and what a manifest may say."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from selfdraft.baseline import (
    Baseline,
    BucketCounts,
    DraftCounts,
    TaskBaseline,
    bucket_label,
    bucket_of,
    bucket_range,
    sum_counts,
    wilson_interval,
)
from selfdraft.strict import StrictError, record_from_json


def _counts(drafted: tuple[int, ...], accepted: tuple[int, ...]) -> DraftCounts:
    return DraftCounts(drafted=drafted, accepted=accepted)


BASELINE = Baseline(
    text="calibration.txt",
    text_sha256="0" * 64,
    tokens=900,
    method="decoded",
    tasks=(
        TaskBaseline(
            task="code",
            counts=_counts((100, 100), (90, 70)),
            buckets=(
                BucketCounts(start=0, end=4096, counts=_counts((60, 60), (57, 45))),
                BucketCounts(start=4096, end=8192, counts=_counts((40, 40), (33, 25))),
            ),
        ),
        TaskBaseline(
            task="prose",
            counts=_counts((50,), (30,)),
            buckets=(BucketCounts(start=0, end=4096, counts=_counts((50,), (30,))),),
        ),
    ),
)


@pytest.mark.parametrize(
    ("position", "label"),
    [
        (0, "0-4K"),
        (4095, "0-4K"),
        (4096, "4K-8K"),
        (8191, "4K-8K"),
        (8192, "8K-16K"),
        (32767, "16K-32K"),
        (65535, "32K-64K"),
        (65536, "64K-128K"),
        (131071, "64K-128K"),
        (131072, "128K-256K"),
    ],
)
def test_buckets_double(position: int, label: str) -> None:
    index = bucket_of(position)
    start, end = bucket_range(index)
    assert start <= position < end
    assert bucket_label(index) == label


def test_counts_of_one_task_or_of_all() -> None:
    assert BASELINE.counts("code") == _counts((100, 100), (90, 70))
    assert BASELINE.counts() == _counts((150, 100), (120, 70))
    assert BASELINE.counts("unknown") == BASELINE.counts()
    assert BASELINE.bucket(0) == _counts((110, 60), (87, 45))
    assert BASELINE.bucket(1, "code").rate(0) == pytest.approx(33 / 40)
    assert BASELINE.bucket(5).rate() is None
    assert sum_counts([]) == _counts((), ())


def test_rates_are_accepted_by_drafted() -> None:
    counts = _counts((100, 100), (90, 70))
    assert counts.rate() == 0.8
    assert counts.rate(1) == 0.7
    assert counts.rate(2) is None
    assert counts.interval(0) == wilson_interval(90, 100)
    assert counts.interval(4) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("drafted", "accepted"),
    [((1,), (2,)), ((5,), (-1,)), ((5, 6), (1, 1)), ((5, 5), (1, 2)), ((5,), (1, 1))],
)
def test_impossible_counts_are_refused(drafted: tuple[int, ...], accepted: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        _counts(drafted, accepted)


def test_json_gives_the_record_back_and_is_strict() -> None:
    data = dataclasses.asdict(BASELINE)
    assert record_from_json(Baseline, data) == BASELINE
    data["tasks"][0]["counts"]["accepted"] = (101, 70)
    with pytest.raises(StrictError, match=r"tasks\[0\].counts: accepted"):
        record_from_json(Baseline, data)


def test_wilson_interval_of_known_values() -> None:
    """Newcombe (1998), table I: 81 of 263 and 0 of 20 at 95 %."""
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson_interval(20, 20)[1] == 1.0
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("trials", [30, 200, 2000])
def test_interval_covers_the_truth_as_often_as_it_says(trials: int, confidence: float) -> None:
    """Averaged over true shares from 0.02 to 0.98, 400 samples each."""
    rng = np.random.default_rng(trials)
    shares = np.linspace(0.02, 0.98, 49)
    inside = total = 0
    for share in shares:
        for accepted in rng.binomial(trials, share, size=400).tolist():
            low, high = wilson_interval(accepted, trials, confidence=confidence)
            inside += low <= share <= high
            total += 1
    assert inside / total == pytest.approx(confidence, abs=0.012)


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, selfdraft.baseline; print([m for m in ('numpy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
