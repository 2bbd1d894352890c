"""The cost of drawing is measured on every rule, and only undecided rows are fetched."""

from __future__ import annotations

import argparse

from benchmarks import sampling_cost


def test_each_rule_has_a_record_and_greedy_fetches_no_row() -> None:
    records = sampling_cost.measure(argparse.Namespace(rounds=1), 600)
    names = [entry["name"] for entry in records]
    assert len(names) == len(set(names)) == 2 * len(sampling_cost.RULES)
    shares = {entry["name"]: entry["fallback_share"] for entry in records}
    assert shares["draw greedy, V=600"] == shares["draw T=1, top-k 50, V=600"] == 0.0
    assert 0.0 < shares["draw T=1, V=600"] < 1.0
