"""The decision table: it decides every case, every rule is needed, and nothing in it is unknown."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest

from selfdraft.jetson.planner.advice_table import (
    DecisionTable,
    Facts,
    decide,
    decision_table,
)
from selfdraft.strict import StrictError, record_from_json

VALUES: dict[str, tuple[Any, ...]] = {
    "goal": ("latency", "throughput", "quality"),
    "timing": ("online", "offline"),
    "output": ("deterministic", "sampled"),
    **dict.fromkeys(
        ("approximate_allowed", "drafts_pay", "sparse_pays", "room_for_several"), (True, False)
    ),
}


def every_case() -> Iterator[Facts]:
    for values in itertools.product(*VALUES.values()):
        yield Facts(**dict(zip(VALUES, values, strict=True)))


def as_json() -> dict[str, Any]:
    text = (files("selfdraft.jetson.planner") / "strategies.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def test_every_case_is_decided() -> None:
    cases = list(every_case())
    assert len(cases) == 3 * 2 * 2 * 2**4
    table = decision_table()
    for facts in cases:
        assert table.strategy(decide(table.rules, facts).strategy)
        assert decide(table.attention, facts).choice in ("full", "sparse")


@pytest.mark.parametrize("kind", ["rules", "attention"])
def test_every_rule_decides_some_case_and_matters(kind: str) -> None:
    rules = getattr(decision_table(), kind)
    for left_out in rules[:-1]:
        others = tuple(rule for rule in rules if rule is not left_out)
        changed = [f for f in every_case() if decide(rules, f) != decide(others, f)]
        assert changed, f"{left_out} decides nothing"


RULES: list[tuple[dict[str, Any], str]] = [
    ({"goal": "quality", "timing": "offline"}, "searched for"),
    ({"goal": "throughput"}, "one sequence uses them or many"),
    ({"drafts_pay": True}, "head's drafts use it"),
    ({}, "must give the same reply"),
    ({"output": "sampled"}, "there is one sequence"),
]


@pytest.mark.parametrize("row", range(len(RULES)))
def test_every_row_of_the_table_is_reached_by_the_need_it_is_for(row: int) -> None:
    rules = decision_table().rules
    assert len(rules) == len(RULES)
    facts, why = RULES[row]
    chosen = decide(rules, case(**facts))
    assert chosen is rules[row] and why in chosen.why


def case(**facts: Any) -> Facts:
    usual = {
        "goal": "latency",
        "timing": "online",
        "output": "deterministic",
        "approximate_allowed": True,
        "drafts_pay": False,
        "sparse_pays": False,
        "room_for_several": True,
    }
    return Facts(**{**usual, **facts})


@pytest.mark.parametrize(
    "facts, strategy",
    [
        ({"drafts_pay": True}, "mtp"),
        ({"drafts_pay": True, "output": "sampled"}, "mtp"),
        ({}, "greedy"),
        ({"output": "sampled"}, "sampling"),
        ({"goal": "throughput", "drafts_pay": True}, "batched"),
        ({"goal": "throughput", "room_for_several": False, "drafts_pay": True}, "mtp"),
        ({"goal": "quality", "timing": "offline", "drafts_pay": True}, "beam"),
        ({"goal": "quality", "timing": "online", "drafts_pay": True}, "mtp"),
        ({"goal": "quality", "timing": "offline", "room_for_several": False}, "greedy"),
    ],
)
def test_strategy_of_a_case(facts: dict[str, Any], strategy: str) -> None:
    assert decide(decision_table().rules, case(**facts)).strategy == strategy


@pytest.mark.parametrize(
    "facts, choice",
    [
        ({"sparse_pays": True}, "sparse"),
        ({"sparse_pays": True, "approximate_allowed": False}, "full"),
        ({}, "full"),
    ],
)
def test_attention_of_a_case(facts: dict[str, Any], choice: str) -> None:
    assert decide(decision_table().attention, case(**facts)).choice == choice


def test_what_selfdraft_lacks_is_named_with_what_it_brings_and_costs() -> None:
    absent = decision_table().absent
    assert {entry.name for entry in absent} == {"EAGLE", "separate draft model", "Medusa"}
    assert all(entry.brings and entry.costs for entry in absent)
    assert {entry.name for entry in absent}.isdisjoint(s.name for s in decision_table().strategies)


def test_options_of_every_strategy_are_options_of_its_command() -> None:
    from selfdraft.cli.registry import load_command

    for strategy in decision_table().strategies:
        known = {name for param in load_command(strategy.command).params for name in param.opts}
        assert set(strategy.options) == {"deterministic", "sampled"}
        for words in strategy.options.values():
            assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda data: data["rules"][0]["when"].update(gaol="x"), "no fact: \\['gaol'\\]"),
        (lambda data: data["rules"][0].update(strategy="eagle"), "not there: \\['eagle'\\]"),
        (lambda data: data["rules"].pop(), "last rule must hold always"),
        (lambda data: data["attention"].pop(), "last rule must hold always"),
        (lambda data: data["absent"][0].update(extra="much"), "expected one of"),
        (lambda data: data.update(more=[]), "unknown key 'more'"),
    ],
)
def test_a_damaged_table_is_refused(change: Any, message: str) -> None:
    data = as_json()
    change(data)
    with pytest.raises(StrictError, match=message):
        record_from_json(DecisionTable, data)


def test_facts_are_exactly_what_the_cases_enumerate() -> None:
    assert {field.name for field in dataclasses.fields(Facts)} == set(VALUES)
