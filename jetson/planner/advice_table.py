"""The decision table of ``selfdraft advise``: data, and the one rule that reads it.

Rules are tried in order; the first whose conditions all hold decides. Conditions compare facts by
equality, so the table can be read aloud and enumerated.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Literal, TypeVar

from selfdraft.strict import record_from_json

Goal = Literal["latency", "throughput", "quality"]
Timing = Literal["online", "offline"]
Output = Literal["deterministic", "sampled"]
AbsentCost = Literal["draft_layers", "small_model", "heads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the rules may ask: the need, and what planned or measured figures say."""

    goal: Goal
    timing: Timing
    output: Output
    approximate_allowed: bool
    """Sparse attention may be used: its output is close to the model's own, not equal."""
    drafts_pay: bool
    sparse_pays: bool
    room_for_several: bool
    """Memory holds two sequences of the context at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A way of decoding that selfdraft has; ``options`` are those of ``command``; chat takes generate's."""

    name: str
    title: str
    batched: bool
    drafts: bool
    wide: bool
    """The sequences of a batch are beams of one reply."""
    options: dict[str, tuple[str, ...]]
    gives: str
    costs: str
    command: Literal["generate", "serve"] = "generate"

    def words(self, output: Output, *, drafts: int, batch: int) -> list[str]:
        """The options with their numbers."""
        return [word.format(drafts=drafts, batch=batch) for word in self.options[output]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Chooses a strategy when all of ``when`` holds."""

    strategy: str
    when: dict[str, str | bool]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRule:
    """Chooses the attention when all of ``when`` holds."""

    choice: Literal["full", "sparse"]
    when: dict[str, str | bool]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A strategy that selfdraft does not have; ``extra`` says what its memory is planned from."""

    name: str
    brings: str
    costs: str
    extra: AbsentCost


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionTable:
    """Strategies, the rules that choose one, and what is not there."""

    strategies: tuple[Strategy, ...]
    rules: tuple[Rule, ...]
    attention: tuple[AttentionRule, ...]
    absent: tuple[Absent, ...]

    def __post_init__(self) -> None:
        known = {field.name for field in fields(Facts)}
        asked = [key for rule in self.rules for key in rule.when]
        asked += [key for rule in self.attention for key in rule.when]
        if unknown := set(asked) - known:
            raise ValueError(f"rules ask for what is no fact: {sorted(unknown)}")
        names = {strategy.name for strategy in self.strategies}
        if missing := {rule.strategy for rule in self.rules} - names:
            raise ValueError(f"rules name strategies that are not there: {sorted(missing)}")
        if self.rules[-1].when or self.attention[-1].when:
            raise ValueError("the last rule must hold always")

    def strategy(self, name: str) -> Strategy:
        """The strategy ``name``."""
        return next(strategy for strategy in self.strategies if strategy.name == name)


AnyRule = TypeVar("AnyRule", Rule, AttentionRule)


def decide(rules: Sequence[AnyRule], facts: Facts) -> AnyRule:
    """The first rule whose conditions all hold."""
    return next(rule for rule in rules if _holds(rule.when, facts))


def _holds(when: Mapping[str, str | bool], facts: Facts) -> bool:
    return all(getattr(facts, key) == value for key, value in when.items())


@functools.cache
def decision_table() -> DecisionTable:
    """The table of ``strategies.json``."""
    text = (files("selfdraft.jetson.planner") / "strategies.json").read_text(encoding="utf-8")
    return record_from_json(DecisionTable, json.loads(text), where="strategies.json")
