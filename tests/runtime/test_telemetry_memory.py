"""What telemetry keeps is bounded, however many steps come and whatever clients ask for."""

from __future__ import annotations

import tracemalloc
from typing import Any

from support.clocked_backend import Clock

from selfdraft.runtime.telemetry.counts import Key, Labels
from selfdraft.runtime.telemetry.meter import MOST_BUDGETS, MOST_TEMPERATURES, Telemetry
from selfdraft.runtime.telemetry.window import BLOCK_STEPS, Window
from selfdraft.runtime.thinking_record import ThinkingRecord

BYTES_A_STEP = 16
KEYS = [Key(Labels("chat", "match", 0.8), 0, drafts) for drafts in range(4)]


def _fill(window: Window, count: int, *, start: int = 0) -> None:
    for index in range(start, start + count):
        key = KEYS[index % 4]
        window.add(float(index), key, index % (key.drafts + 1), 1)


def test_a_step_in_the_window_takes_no_object_of_its_own() -> None:
    window, count = Window(1e9), 30 * BLOCK_STEPS
    _fill(window, BLOCK_STEPS)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        _fill(window, count, start=BLOCK_STEPS)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken < BYTES_A_STEP * count


def test_steps_that_left_the_window_give_their_memory_back() -> None:
    window = Window(10.0 * BLOCK_STEPS)
    _fill(window, 100 * BLOCK_STEPS)
    assert len(window) == 10 * BLOCK_STEPS
    assert sum(sum(own.steps) for own in window.histograms.values()) == len(window)
    assert sum(own.tokens for own in window.histograms.values()) == len(window)
    assert len(window._steps._blocks) <= 11
    window.expire(1e9)
    assert len(window) == 0 and not any(any(own.steps) for own in window.histograms.values())
    _fill(window, 3, start=2 * 10**9)
    assert len(window) == 3


def test_temperatures_without_end_share_labels() -> None:
    telemetry = Telemetry(clock=Clock())
    for index in range(1000):
        labels = telemetry.labels("chat", "match", index / 1000)
        telemetry.note_step(labels, position=0, drafted=1, accepted=1, tokens=2)
    assert len(telemetry.totals) == MOST_TEMPERATURES
    assert telemetry.snapshot().total.steps == 1000
    assert telemetry.labels("chat", "match", 0.02).temperature == 0.02
    nearest = (MOST_TEMPERATURES - 1) / 1000
    assert telemetry.labels("chat", "match", 1.5).temperature == nearest


def test_budgets_without_end_share_levels() -> None:
    telemetry = Telemetry(clock=Clock())
    labels = telemetry.labels("math", "greedy", 0.0)
    for budget in range(500):
        telemetry.note_reply(labels, _thought(budget))
    assert len(telemetry.thinking_totals) == MOST_BUDGETS
    assert sum(replies for replies, *_ in telemetry.thinking_totals.values()) == 500


def _thought(budget: int, **changes: Any) -> ThinkingRecord:
    given: dict[str, Any] = {
        "budget": budget,
        "temperature": 0.0,
        "thinking_tokens": 1,
        "forced_tokens": 0,
        "completing_tokens": 0,
        "triggered": False,
        "violated": False,
        "closed": True,
    }
    return ThinkingRecord(**given | changes)
