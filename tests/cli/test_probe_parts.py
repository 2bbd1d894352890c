"""Shares, verdicts and the report of a probe, without a model."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from selfdraft.baseline import wilson_interval
from selfdraft.cli.probe_engine import Rows
from selfdraft.cli.probe_html import page
from selfdraft.cli.probe_shares import (
    Difference,
    known_difference,
    paired_difference,
    share_of,
    unpaired_difference,
)
from selfdraft.cli.probe_verdict import Cause, Effect, judge


def rows(agreed: Any, counted: Any = None) -> Any:
    agreed = np.asarray(agreed, dtype=np.int64)
    return Rows(drafts=agreed, choices=np.ones_like(agreed), counted=counted).agreed


def effect(cause: Cause, value: float, half: float = 0.01, text: str = "t") -> Effect:
    gain = Difference(value=value, low=value - half, high=value + half)
    return Effect(cause=cause, text=text, compared="a against b", gain=gain)


def test_independent_rows_have_wilsons_interval() -> None:
    agreed = np.tile([1, 1, 1, 0], (10, 25))
    found = share_of(rows(agreed))
    assert (found.value, found.rows) == (0.75, 1000)
    assert (found.low, found.high) == pytest.approx(wilson_interval(750, 1000))


def test_sequences_that_differ_widen_the_interval() -> None:
    agreed = np.repeat([[1], [0], [1], [1], [0], [1]], 100, axis=1)
    found = share_of(rows(agreed))
    spread = 1.96 * np.std([1, 0, 1, 1, 0, 1], ddof=1) / np.sqrt(6)
    assert found.low == pytest.approx(4 / 6 - spread)
    assert found.high == pytest.approx(1.0)


def test_rows_that_do_not_count_change_nothing() -> None:
    draw = np.random.default_rng(0)
    agreed = draw.integers(0, 2, (6, 40))
    counted = np.zeros((6, 80), dtype=bool)
    counted[:, :40] = True
    wide = np.hstack([agreed, draw.integers(0, 2, (6, 40))])
    other = draw.integers(0, 2, (6, 40))
    wide_other = np.hstack([other, draw.integers(0, 2, (6, 40))])
    assert share_of(rows(wide, counted)) == share_of(rows(agreed))
    plain = paired_difference(rows(agreed), rows(other))
    assert paired_difference(rows(wide, counted), rows(wide_other, counted)) == plain
    assert share_of(rows(agreed, np.zeros_like(agreed, dtype=bool))).rows == 0


def test_interval_of_a_share_covers_the_truth_when_sequences_differ() -> None:
    draw = np.random.default_rng(1)
    inside = 0
    for _ in range(400):
        own = np.clip(draw.normal(0.7, 0.1, 16), 0, 1)
        found = share_of(rows(draw.random((16, 60)) < own[:, None]))
        inside += found.low <= 0.7 <= found.high
    assert inside / 400 > 0.91


def test_pairs_cancel_what_two_texts_do_not() -> None:
    agreed = np.random.default_rng(2).integers(0, 2, (8, 100))
    same = paired_difference(rows(agreed), rows(agreed))
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    apart = unpaired_difference(rows(agreed), rows(agreed))
    assert apart.value == 0.0 and apart.low < -0.03 and apart.high > 0.03
    known = known_difference(0.9, rows(agreed))
    assert known.value == pytest.approx(0.9 - agreed.mean())
    assert known.low < known.value < known.high


def test_causes_are_named_by_size_and_certainty() -> None:
    verdict = judge(
        [
            effect("wiring", 0.2),
            effect("wiring", 0.3, text="other"),
            effect("quantization", 0.04),
            effect("kv_precision", 0.02),
            effect("context", 0.05, half=0.06),
            effect("distribution_shift", 0.05),
            effect("head_damage", -0.2),
        ]
    )
    assert [one.cause for one in verdict.causes] == ["wiring", "quantization"]
    assert verdict.causes[0].text == "other" and "30.0 points" in verdict.summary
    assert len(verdict.advice) == 2 and "--calibrate" in verdict.advice[0]


def test_nothing_is_said_against_a_healthy_bundle() -> None:
    verdict = judge([effect("wiring", 0.01), effect("distribution_shift", 0.05)])
    assert not verdict.causes and not verdict.advice and "nothing explains" in verdict.summary


SHARE = {"value": 0.7712345, "low": 0.75, "high": 0.79, "rows": 4080}
GAIN = {"value": -0.0123, "low": -0.03, "high": 0.01}
RECORD: dict[str, Any] = {
    "source": "a <b> & 'c'",
    "expected": 0.8131,
    "measurements": [{"text": "your text", "setting": "as deployed", "share": SHARE}],
    "positions": [
        {"start": 0, "end": 1024, "far": SHARE, "near": SHARE},
        {"start": 1024, "end": 2048, "far": {**SHARE, "value": 0.760001}, "near": SHARE},
    ],
    "effects": [
        {"cause": "wiring", "text": "t", "compared": "a", "gain": GAIN, "named": False},
        {"cause": "context", "text": "t", "compared": "b", "gain": SHARE, "named": True},
    ],
    "verdict": {"causes": ["context"], "summary": "</script><b>", "advice": ["do & do"]},
    "untold": ["why"],
}


class Page(HTMLParser):
    """Collects figures, the record, and whatever a browser would fetch or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.figures: list[float] = []
        self.fetched: list[tuple[str, str, str | None]] = []
        self.open: list[str] = []
        self.record = ""
        self.styles = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action", "data", "xlink:href", "xmlns") or (
                name.startswith("on") or "url(" in (value or "") or "//" in (value or "")
            ):
                self.fetched.append((tag, name, value))
            if tag == "data" and name == "value":
                self.figures.append(float(value or "nan"))
            if tag == "script":
                assert (name, value) in (("type", "application/json"), ("id", "record"))

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.record += data
        if self.open and self.open[-1] == "style":
            self.styles += data


def test_report_is_one_file_with_the_values_of_the_json() -> None:
    found = Page(page(RECORD))
    assert json.loads(found.record) == RECORD
    assert found.fetched == [] and "script" in found.open
    assert found.open.count("script") == 1 and "link" not in found.open
    assert "url(" not in found.styles and "@import" not in found.styles
    edges = ("value", "low", "high")
    wanted = [RECORD["expected"], *SHARE.values()]
    for one in RECORD["positions"]:
        wanted += [one["start"], one["end"]]
        wanted += [one[kind][edge] for kind in ("far", "near") for edge in edges]
    wanted += [one["gain"][edge] for one in RECORD["effects"] for edge in edges]
    assert sorted(found.figures) == sorted(map(float, wanted))
    assert found.open.count("svg") == 3


def test_report_of_nothing_is_a_page_too() -> None:
    empty = {**RECORD, "positions": [], "effects": [], "untold": [], "expected": None}
    found = Page(page(empty))
    assert json.loads(found.record) == empty
    assert found.open.count("svg") == 1
