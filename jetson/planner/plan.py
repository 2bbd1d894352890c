"""A plan: memory and speed of one model on one module, by context length, and what would help."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from selfdraft.jetson.planner.memory import MemoryPlan, Workload, memory_plan
from selfdraft.jetson.planner.reading import Attention, attention_of, sparse_plan
from selfdraft.jetson.planner.speed import (
    Clocks,
    Efficiencies,
    Model,
    backbone_bytes,
    prefill_ms,
    speculative_ms,
    step_ms,
    tokens_per_step,
)
from selfdraft.jetson.planner.storage import StoredWeights, device_storage

if TYPE_CHECKING:
    from selfdraft.jetson.planner.geometry import Geometry
    from selfdraft.manifest import AttentionPlan, ModelSpec

DEFAULT_ACCEPTANCE = (0.8, 0.7, 0.6)
"""Of each draft position when the ones before were accepted; between the published 0.7 and 0.9 of a
first draft. Measure your own: selfdraft bench."""
DEFAULT_BUDGET = 4096

Kv = Literal["fp16", "int8"]
Weights = Literal["fp16", "int4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The board: clocks of its mode, the efficiencies to count with, and its free memory."""

    clocks: Clocks
    efficiencies: Efficiencies
    available_bytes: int
    available_measured: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """How the model is to run."""

    weights: Weights = "int4"
    head: Weights = "fp16"
    kv: Kv = "fp16"
    attention: AttentionPlan | None = None
    """None: every layer is dense."""
    workload: Workload
    acceptance: tuple[float, ...] = DEFAULT_ACCEPTANCE
    stored: StoredWeights | None = None
    """Of a bundle for boards."""

    @property
    def own(self) -> StoredWeights | None:
        """The bundle's weights, where the choices are what it has."""
        if self.stored is None:
            return None
        storage = self.stored.storage
        as_stored = (self.weights, self.head) == (storage.layers, storage.head)
        return self.stored if as_stored else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Estimated times at one length; tokens a second of one sequence."""

    length: int
    prefill_ms: float
    step_ms: float
    read_bytes: int
    tok_per_s: float
    tokens_per_step: float | None
    """With drafts; None without."""
    speculative_tok_per_s: float | None

    @property
    def speedup(self) -> float | None:
        """Speculative by plain."""
        faster = self.speculative_tok_per_s
        return None if faster is None else faster / self.tok_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRow:
    """One line of the table by context length."""

    context: int
    memory: MemoryPlan
    speed: Speed
    sparse: Speed | None
    """With block-sparse attention, where the choices are dense and the context beyond its budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change that would help, and the room it leaves."""

    change: str
    head_room_bytes: int
    build_room_bytes: int

    @property
    def fits(self) -> bool:
        """Whether it is enough by itself."""
        return self.head_room_bytes >= 0 and self.build_room_bytes >= 0


def model_of(spec: ModelSpec, geometry: Geometry, choices: Choices) -> Model:
    """The model as the choices store it."""
    storage = (
        choices.own.storage
        if choices.own
        else device_storage(geometry, weights=choices.weights, head=choices.head)
    )
    return Model(geometry=geometry, storage=storage, attention=_attention(spec, choices))


def context_row(
    spec: ModelSpec, geometry: Geometry, choices: Choices, target: Target, *, context: int
) -> ContextRow:
    """Memory and speed when a sequence has grown to ``context`` tokens."""
    choices = with_context(choices, context)
    model = model_of(spec, geometry, choices)
    sparse = None
    if choices.attention is None and context > DEFAULT_BUDGET:
        plan = sparse_plan(spec, budget_tokens=DEFAULT_BUDGET)
        other = model_of(spec, geometry, replace(choices, attention=plan))
        sparse = speed(other, choices, target, length=context)
    return ContextRow(
        context=context,
        memory=account(model, choices, target),
        speed=speed(model, choices, target, length=context),
        sparse=sparse,
    )


def account(model: Model, choices: Choices, target: Target) -> MemoryPlan:
    """Memory of a model on a board."""
    return memory_plan(
        model,
        choices.workload,
        weights=choices.own.part_bytes if choices.own else None,
        available=target.available_bytes,
        measured=target.available_measured,
    )


def speed(model: Model, choices: Choices, target: Target, *, length: int) -> Speed:
    """Times at ``length`` cached tokens."""
    clocks, own, drafts = target.clocks, target.efficiencies, choices.workload.drafts
    plain = step_ms(model, clocks, own, length=length)
    expected = faster = None
    if drafts and model.geometry.mtp:
        expected = tokens_per_step(choices.acceptance, drafts)
        step = speculative_ms(model, clocks, own, length=length, drafts=drafts)
        faster = 1e3 * expected / step
    chunk = choices.workload.prefill_rows
    return Speed(
        length=length,
        prefill_ms=prefill_ms(model, clocks, own, length=length, chunk=chunk),
        step_ms=plain,
        read_bytes=backbone_bytes(model, length=length),
        tok_per_s=1e3 / plain,
        tokens_per_step=expected,
        speculative_tok_per_s=faster,
    )


def with_context(choices: Choices, context: int) -> Choices:
    """The same choices at another length."""
    return replace(choices, workload=replace(choices.workload, context=context))


def largest_context(
    spec: ModelSpec, geometry: Geometry, choices: Choices, target: Target, *, most: int
) -> int | None:
    """The longest context up to ``most`` that fits, in steps of 64; None: not even 64 tokens."""
    low, high = 0, most // 64
    while low < high:
        middle = (low + high + 1) // 2
        tried = with_context(choices, middle * 64)
        if account(model_of(spec, geometry, tried), tried, target).head_room_bytes >= 0:
            low = middle
        else:
            high = middle - 1
    return low * 64 or None


def remedies(
    spec: ModelSpec, geometry: Geometry, choices: Choices, target: Target
) -> tuple[Remedy, ...]:
    """Changes in the order of what they cost, each tried alone, then all at once."""
    found = [
        _measured(spec, geometry, changed, target, name) for name, changed in _alternatives(choices)
    ]
    most = choices.workload.context
    fits = largest_context(spec, geometry, choices, target, most=most)
    if fits and fits < most:
        shorter = with_context(choices, fits)
        found.append(_measured(spec, geometry, shorter, target, f"--context {fits}"))
    return tuple(found)


def _alternatives(choices: Choices) -> list[tuple[str, Choices]]:
    """Other storage by the option that asks for it, single changes first."""
    single = (
        ("--weights int4", replace(choices, weights="int4")),
        ("--kv int8", replace(choices, kv="int8")),
        ("--head int4", replace(choices, head="int4")),
    )
    changed = [(name, other) for name, other in single if other != choices]
    if len(changed) > 1:
        together = " ".join(name for name, _ in changed)
        changed.append((together, replace(choices, weights="int4", kv="int8", head="int4")))
    return changed


def _measured(
    spec: ModelSpec, geometry: Geometry, choices: Choices, target: Target, name: str
) -> Remedy:
    memory = account(model_of(spec, geometry, choices), choices, target)
    return Remedy(
        change=name,
        head_room_bytes=memory.head_room_bytes,
        build_room_bytes=memory.build_room_bytes,
    )


def _attention(spec: ModelSpec, choices: Choices) -> Attention:
    return attention_of(spec, choices.attention, kv=choices.kv)
