"""Planted faults are named, healthy variants are left alone: ``benchmarks.probe_faults`` as a test."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the exporter: pip install 'selfdraft[export]'")

from benchmarks.probe_faults import WORTH, Bench, Case

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("probe"))


def test_every_fault_that_costs_ten_points_is_named(bench: Bench) -> None:
    outcomes = [bench.run(case) for case in bench.faults()]
    wrong = [outcome for outcome in outcomes if not outcome.right]
    assert not wrong, "\n".join(map(str, wrong))
    kinds = {outcome.wanted for outcome in outcomes if outcome.cost >= WORTH}
    assert len(kinds) == 6, kinds


def test_healthy_variants_raise_at_most_one_alarm(bench: Bench) -> None:
    cases: list[Case] = list(bench.healthy())
    assert len(cases) == 20
    alarms = [outcome for outcome in map(bench.run, cases) if not outcome.right]
    assert len(alarms) <= 1, "\n".join(map(str, alarms))
