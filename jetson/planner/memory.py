"""What a model keeps in a board's memory, and what building its engines takes on top.

Weights and states are exact. The rest are estimates, each with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from selfdraft.jetson.planner.reading import state_bytes
from selfdraft.jetson.planner.speed import Model
from selfdraft.jetson.planner.storage import weight_bytes

if TYPE_CHECKING:
    from selfdraft.jetson.modules import Module

GIB = 1024**3
LINUX_SHARE = 0.93
"""MemTotal by the memory that the module is sold with: 0.93 on AGX 32 GB and Nano 8 GB, 0.96 on AGX
64 GB; firmware and carve-outs take the rest."""
SYSTEM_BYTES = int(1.5 * GIB)
"""A booted JetPack without a desktop; a desktop takes 1 to 1.5 GiB more."""
ENGINE_BYTES = int(0.75 * GIB)
"""CUDA context, TensorRT's libraries and the Python process."""
BUILD_FACTOR = 3.6
"""Peak of an engine build by the weights it is built from; published once, for an 8B model in
fp16 (54.8 GB)."""
FRAGMENTATION_SHARE = 0.05
"""Of what is available, left free: NvMap hands out large blocks only from unbroken memory."""
ROW_BYTES = 2
"""Of one value in the log of a recurrent layer: fp16."""
LIVE_BUFFERS = 2
"""Activation buffers of the widest layer that are alive at once."""

Source = Literal["exact", "estimate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """One line of the account."""

    name: str
    num_bytes: int
    source: Source
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the memory must hold beside the weights."""

    context: int
    """Tokens of prompt and reply together, of each sequence."""
    batch: int = 1
    drafts: int = 0
    prefill_rows: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Everything that is held while the model runs, and the peak of building it."""

    parts: tuple[MemoryPart, ...]
    available_bytes: int
    available_source: Literal["measured", "estimate"]
    build_peak_bytes: int

    @property
    def total_bytes(self) -> int:
        """All parts."""
        return sum(part.num_bytes for part in self.parts)

    @property
    def usable_bytes(self) -> int:
        """Available memory less what fragmentation may keep."""
        return int(self.available_bytes * (1 - FRAGMENTATION_SHARE))

    @property
    def head_room_bytes(self) -> int:
        """Usable less needed; negative when the model does not fit."""
        return self.usable_bytes - self.total_bytes

    @property
    def build_room_bytes(self) -> int:
        """Usable less the peak of an engine build."""
        return self.usable_bytes - self.build_peak_bytes

    @property
    def fits(self) -> bool:
        """Whether it runs, and its engines can be built on the same board."""
        return self.head_room_bytes >= 0 and self.build_room_bytes >= 0


def available_bytes(module: Module) -> int:
    """Memory that a freshly booted board without a desktop leaves, by the module table."""
    return int(module.memory_gib * GIB * LINUX_SHARE) - SYSTEM_BYTES


def memory_plan(
    model: Model,
    workload: Workload,
    *,
    available: int,
    measured: bool = False,
    weights: dict[str, int] | None = None,
) -> MemoryPlan:
    """The account of one model; ``available`` as measured on a board, or from the table.

    ``weights``: bytes by part where files have them; None: as the exporter would write them.
    """
    if weights is None:
        weights = weight_bytes(model.geometry, model.storage)
    parts = [_part(name, size, "exact", "weights as stored") for name, size in weights.items()]
    parts += _state_parts(model, workload)
    parts.append(
        _part("activations", activation_bytes(model, workload), "estimate", "widest layer, twice")
    )
    parts.append(_part("engine", ENGINE_BYTES, "estimate", "CUDA context, libraries, Python"))
    return MemoryPlan(
        parts=tuple(parts),
        available_bytes=available,
        available_source="measured" if measured else "estimate",
        build_peak_bytes=build_peak_bytes(weights),
    )


def build_peak_bytes(weights: dict[str, int]) -> int:
    """Peak while the larger engine is built; the embedding is bound at run time, not built in."""
    backbone = weights["backbone"] + weights.get("lm_head", 0)
    mtp = weights.get("mtp", 0) + weights.get("draft_head", 0)
    return int(BUILD_FACTOR * max(backbone, mtp)) + ENGINE_BYTES


def activation_bytes(model: Model, workload: Workload) -> int:
    """Buffers of a pass: the widest layer of a prefill chunk, and logits of the rows asked for."""
    geometry = model.geometry
    queries = geometry.num_heads * geometry.head_dim
    attention = 2 * queries + 2 * geometry.key_size
    widest = max(attention, 2 * geometry.intermediate_size) + 2 * geometry.hidden_size
    rows = workload.batch * max(workload.prefill_rows, workload.drafts + 1)
    logits = workload.batch * (workload.drafts + 1) * geometry.vocab_size * 4
    return LIVE_BUFFERS * rows * widest * 2 + logits


def _state_parts(model: Model, workload: Workload) -> list[MemoryPart]:
    kept: list[MemoryPart] = []
    for graph, ops in (("", model.attention.layers), ("MTP ", model.attention.mtp)):
        states = state_bytes(ops, context=workload.context, batch=workload.batch)
        kept += [
            _part(f"{graph}{kind}", size, "exact", f"{workload.batch} × {workload.context} tokens")
            for kind, size in states.items()
        ]
    if model.geometry.linear:
        for kind, size in model.geometry.linear.kept_bytes(row_bytes=ROW_BYTES).items():
            reason = f"{workload.batch} sequences"
            kept.append(_part(kind, workload.batch * size, "exact", reason))
    return kept


def _part(name: str, num_bytes: int, source: Source, reason: str) -> MemoryPart:
    return MemoryPart(name=name, num_bytes=num_bytes, source=source, reason=reason)
