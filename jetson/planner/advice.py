"""From a model, a board and a need to a way of decoding, with figures and reasons."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from selfdraft.jetson.planner.advice_table import (
    Absent,
    DecisionTable,
    Facts,
    Goal,
    Output,
    Strategy,
    Timing,
    decide,
)
from selfdraft.jetson.planner.memory import MemoryPlan
from selfdraft.jetson.planner.plan import (
    DEFAULT_BUDGET,
    Choices,
    Target,
    account,
    model_of,
    speed,
)
from selfdraft.jetson.planner.reading import sparse_plan
from selfdraft.jetson.planner.speed import step_ms

if TYPE_CHECKING:
    from selfdraft.jetson.planner.geometry import Geometry
    from selfdraft.manifest import ModelSpec

MAX_DRAFTS = 4
MAX_BATCH = 8
BEAMS = 4
DRAFTS_GAIN = 1.05
"""Speed-up from which drafts are worth their memory."""
SPARSE_GAIN = 1.10
"""Speed-up from which an approximation is worth it."""
SMALL_MODEL_SHARE = 0.1
"""Weights of a separate draft model by the target's, as such pairs are usually chosen."""
EAGLE_LAYERS = 1
MEDUSA_HEADS = 4

Basis = Literal["measured", "estimate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What the user wants."""

    goal: Goal = "latency"
    timing: Timing = "online"
    output: Output = "deterministic"
    approximate_allowed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeed:
    """Speeds of one sequence that ``selfdraft bench`` found; drafts 0 is plain."""

    tok_per_s: dict[int, float]

    def best_drafts(self) -> int | None:
        """The fastest number of drafts; None where none was measured."""
        drafted = {k: v for k, v in self.tok_per_s.items() if k > 0}
        return max(drafted, key=drafted.__getitem__) if drafted else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A strategy with its figures."""

    strategy: Strategy
    drafts: int
    batch: int
    tok_per_s: float
    """Of all sequences together; a reply's where they are beams of one."""
    basis: Basis
    memory: MemoryPlan

    @property
    def fits(self) -> bool:
        """Whether the board's memory holds it."""
        return self.memory.fits


@dataclass(frozen=True, slots=True, kw_only=True)
class NotThere:
    """A strategy that selfdraft lacks, and the memory it would take beside the model."""

    absent: Absent
    extra_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The strategy chosen, why, and everything it was chosen from."""

    facts: Facts
    chosen: Option
    why: str
    attention: Literal["full", "sparse"]
    attention_why: str
    sparse_gain: float
    drafts_gain: float | None
    options: tuple[Option, ...]
    not_there: tuple[NotThere, ...]


def advise(
    spec: ModelSpec,
    geometry: Geometry,
    choices: Choices,
    target: Target,
    *,
    need: Need,
    table: DecisionTable,
    measured: MeasuredSpeed | None = None,
) -> Advice:
    """Decide by the table. ``measured`` replaces the planned speeds of one sequence."""
    planner = _Planner(spec=spec, geometry=geometry, choices=choices, target=target)
    gain = planner.sparse_gain()
    attention_facts = _facts(need, drafts_gain=None, sparse_gain=gain, batch=1)
    attention = decide(table.attention, attention_facts)
    if attention.choice == "sparse":
        planner = planner.sparse()
    drafts, drafts_gain = _drafts(planner, measured)
    batch = planner.largest_batch()
    facts = _facts(need, drafts_gain=drafts_gain, sparse_gain=gain, batch=batch)
    rule = decide(table.rules, facts)
    options = tuple(
        planner.option(strategy, drafts=drafts, batch=batch, measured=measured)
        for strategy in table.strategies
        if not strategy.drafts or drafts
    )
    return Advice(
        facts=facts,
        chosen=next(option for option in options if option.strategy.name == rule.strategy),
        why=rule.why,
        attention=attention.choice,
        attention_why=attention.why,
        sparse_gain=gain,
        drafts_gain=drafts_gain,
        options=options,
        not_there=tuple(_not_there(planner, absent) for absent in table.absent),
    )


def _facts(need: Need, *, drafts_gain: float | None, sparse_gain: float, batch: int) -> Facts:
    return Facts(
        goal=need.goal,
        timing=need.timing,
        output=need.output,
        approximate_allowed=need.approximate_allowed,
        drafts_pay=drafts_gain is not None and drafts_gain >= DRAFTS_GAIN,
        sparse_pays=sparse_gain >= SPARSE_GAIN,
        room_for_several=batch > 1,
    )


def _drafts(planner: _Planner, measured: MeasuredSpeed | None) -> tuple[int, float | None]:
    """The best number of drafts and its speed-up; (0, None) without a head."""
    if measured is not None:
        best, plain = measured.best_drafts(), measured.tok_per_s[0]
        return (best, measured.tok_per_s[best] / plain) if best else (0, None)
    if not planner.geometry.mtp:
        return 0, None
    speeds = {drafts: planner.sequence_tok_per_s(drafts) for drafts in range(MAX_DRAFTS + 1)}
    drafts = max(range(1, MAX_DRAFTS + 1), key=speeds.__getitem__)
    return drafts, speeds[drafts] / speeds[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planner:
    """One model on one board, asked for figures of several strategies."""

    spec: ModelSpec
    geometry: Geometry
    choices: Choices
    target: Target

    def sparse(self) -> _Planner:
        """The same with sparse attention; a bundle's own plan stays."""
        if self.choices.attention is not None:
            return self
        plan = sparse_plan(self.spec, budget_tokens=DEFAULT_BUDGET)
        return replace(self, choices=replace(self.choices, attention=plan))

    def sparse_gain(self) -> float:
        """Plain speed with sparse attention by plain speed without."""
        dense = replace(self, choices=replace(self.choices, attention=None))
        return self.sparse().sequence_tok_per_s(0) / dense.sequence_tok_per_s(0)

    def sequence_tok_per_s(self, drafts: int) -> float:
        """Planned speed of one sequence at the end of the context."""
        choices = self._with(drafts=drafts, batch=1)
        model = model_of(self.spec, self.geometry, choices)
        found = speed(model, choices, self.target, length=choices.workload.context)
        return found.speculative_tok_per_s or found.tok_per_s

    def batch_tok_per_s(self, batch: int) -> float:
        """Planned speed of ``batch`` sequences together."""
        model = model_of(self.spec, self.geometry, self.choices)
        clocks, own = self.target.clocks, self.target.efficiencies
        length = self.choices.workload.context
        return batch * 1e3 / step_ms(model, clocks, own, length=length, batch=batch)

    def largest_batch(self) -> int:
        """Sequences of the context that fit, 1 to ``MAX_BATCH``."""
        fitting = (n for n in range(MAX_BATCH, 1, -1) if self.memory(drafts=0, batch=n).fits)
        return next(fitting, 1)

    def memory(self, *, drafts: int, batch: int) -> MemoryPlan:
        """The account of a strategy."""
        choices = self._with(drafts=drafts, batch=batch)
        return account(model_of(self.spec, self.geometry, choices), choices, self.target)

    def option(
        self, strategy: Strategy, *, drafts: int, batch: int, measured: MeasuredSpeed | None
    ) -> Option:
        """A strategy's figures."""
        drafts = drafts if strategy.drafts else 0
        beams = max(2, min(BEAMS, batch))
        several = (beams if strategy.wide else batch) if strategy.batched else 1
        basis: Basis = "estimate"
        if strategy.batched:
            rate = self.batch_tok_per_s(several) / (several if strategy.wide else 1)
        elif measured is not None and drafts in measured.tok_per_s:
            rate, basis = measured.tok_per_s[drafts], "measured"
        else:
            rate = self.sequence_tok_per_s(drafts)
        return Option(
            strategy=strategy,
            drafts=drafts,
            batch=several,
            tok_per_s=rate,
            basis=basis,
            memory=self.memory(drafts=drafts, batch=several),
        )

    def _with(self, *, drafts: int, batch: int) -> Choices:
        workload = replace(self.choices.workload, drafts=drafts, batch=batch)
        return replace(self.choices, workload=workload)


def _not_there(planner: _Planner, absent: Absent) -> NotThere:
    """What its weights would add, stored as the model's own are."""
    geometry = planner.geometry
    model = model_of(planner.spec, geometry, planner.choices)
    storage = model.storage
    layer = (geometry.projection, *geometry.attention_layer())
    if absent.extra == "draft_layers":
        size = EAGLE_LAYERS * storage.layer_bytes(layer)
    elif absent.extra == "heads":
        size = MEDUSA_HEADS * storage.matrix_bytes(geometry.head, storage.head)
    else:
        parts = planner.memory(drafts=0, batch=1).parts
        weights = sum(p.num_bytes for p in parts if p.reason == "weights as stored")
        size = int(SMALL_MODEL_SHARE * weights)
    return NotThere(absent=absent, extra_bytes=size)
