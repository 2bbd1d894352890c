"""What the serving benchmark makes of its rounds."""

from __future__ import annotations

from benchmarks import serving

SPEEDS = {1: [30.0, 60.0], 4: [90.0, 150.0]}


def test_ratios_are_taken_within_a_round() -> None:
    found = {("plain", c): speeds for c, speeds in SPEEDS.items()}
    found |= {("random head", c): [0.98 * x for x in speeds] for c, speeds in SPEEDS.items()}
    found |= {("forced", c): [0.9 * x for x in speeds] for c, speeds in SPEEDS.items()}
    records = serving.summary(found, [1, 4])
    assert records["serving, 4 slots, plain"]["by_first"] == 2.75
    assert records["serving, 4 slots, plain"]["met"] is True
    assert records["serving, 1 slots, plain"]["met"] is None
    assert records["serving, 4 slots, random head"]["met"] is True
    assert records["serving, 4 slots, forced"]["met"] is False
    assert records["serving, 4 slots, forced"]["synthetic"] is True
