"""What the soak calls flat, and what it calls a wrong text."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from benchmarks import soak_load
from benchmarks.process_memory import Reading, typical
from selfdraft.cli.load.address import Address
from selfdraft.cli.load.client import Answered


def test_memory_of_a_part_of_the_time_is_the_median_there() -> None:
    readings = [Reading(float(second), 100 + second, 3, 9) for second in range(1, 101)]
    assert typical(readings, 0.05, 0.15).rss_bytes == 110
    assert typical(readings, 0.9, 1.0).rss_bytes == 195
    assert typical(readings[:1], 0.0, 0.5).rss_bytes == 101


def test_a_reply_that_differs_from_the_one_alone_is_a_complaint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = iter(["right"] * 1000)

    def ask(*_: Any, **__: Any) -> Answered:
        return Answered(status=200, sent_at=0.0, text=next(texts), is_whole=True)

    monkeypatch.setattr(soak_load, "ask", ask)
    load = soak_load.Load(Address("127.0.0.1", 1), ["a"], seed=0)
    load.learn()
    rng = random.Random(0)
    assert Counter(load.whole(rng)[1] for _ in range(5)) == {"ok": 5}
    texts = iter(["wrong"])
    assert "wrong text" in load.whole(rng)[1]
