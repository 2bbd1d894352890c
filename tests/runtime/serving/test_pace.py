"""Rows of a chunk that fit a gap."""

from __future__ import annotations

import random

import pytest

from selfdraft.runtime.serving.pace import FIRST_ROWS, LEAST_ROWS, Pace


def test_rows_fill_the_gap_that_the_step_leaves() -> None:
    rng, pace = random.Random(0), Pace(0.5)
    for _ in range(60):
        rows = rng.choice([16, 32, 64, 256])
        pace.note_chunk(rows, (0.05 + 0.002 * rows) * rng.uniform(0.95, 1.05))
        pace.note_step(0.1 * rng.uniform(0.95, 1.05))
    wanted = (0.5 - 0.1 - 0.05) / 0.002
    assert pace.rows(4096) == pytest.approx(wanted, abs=2 * LEAST_ROWS)
    assert pace.rows(4096) % LEAST_ROWS == 0
    assert pace.rows(50) == 50


def test_rows_are_few_before_anything_is_known_and_never_none() -> None:
    pace = Pace(0.001)
    assert pace.rows(256) == FIRST_ROWS
    pace.note_step(1.0)
    pace.note_chunk(64, 0.5)
    assert pace.rows(256) == LEAST_ROWS
    assert pace.rows(4) == 4


def test_a_slower_machine_gets_shorter_chunks() -> None:
    pace = Pace(0.5)
    for each in (0.001, 0.004):
        for rows in (16, 64, 128) * 10:
            pace.note_chunk(rows, 0.02 + each * rows)
        pace.note_step(0.05)
        found = pace.rows(1024)
        assert found == pytest.approx((0.5 - pace.step_s - 0.02) / each, abs=24)  # type: ignore[operator]
