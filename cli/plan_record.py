"""A plan as plain values for ``--json``, every figure with its basis."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from selfdraft.jetson.planner.memory import ROW_BYTES, MemoryPlan
from selfdraft.jetson.planner.plan import Choices, ContextRow, Remedy, Speed
from selfdraft.jetson.planner.reading import attention_of, state_bytes

if TYPE_CHECKING:
    from selfdraft.cli.planned_model import PlannedModel
    from selfdraft.cli.planned_target import PlannedTarget

SCHEMA = "selfdraft.plan/1"
BASIS = (
    "weights and states: exact; times: estimates from bytes and arithmetic with efficiencies fitted "
    "to published figures of TensorRT Edge-LLM (docs/planner.md); selfdraft's own engine has not "
    "been measured on a board"
)


def plan_record(
    model: PlannedModel,
    board: PlannedTarget,
    choices: Choices,
    rows: list[ContextRow],
    found: tuple[Remedy, ...],
) -> dict[str, Any]:
    """Everything that ``selfdraft plan`` tells; the last row is the context asked for."""
    asked = rows[-1]
    return {
        "schema": SCHEMA,
        "basis": BASIS,
        "model": {"name": model.geometry.name, "kind": model.kind, **_sizes(model)},
        "device": device_record(board),
        "choices": _choices(choices),
        "exported": exported_record(model, context=asked.context),
        "fits": asked.memory.fits,
        "contexts": [_row(row) for row in rows],
        "remedies": [{**asdict(remedy), "fits": remedy.fits} for remedy in found],
    }


def device_record(board: PlannedTarget) -> dict[str, Any]:
    """Module, mode, clocks, and the efficiencies the times were counted with."""
    own = board.target.efficiencies
    return {
        "name": board.module.name,
        "title": board.module.title,
        "power_mode": board.mode.name,
        "super": board.mode.super_config,
        "clocks": asdict(board.target.clocks),
        "efficiencies": {"basis": "estimate", **asdict(own)},
        "reached_gb_per_s": own.gb_per_s(board.target.clocks),
    }


def exported_record(model: PlannedModel, *, context: int) -> dict[str, Any]:
    """What the exporter writes, and what a runtime allocates for its states: exact."""
    return {
        "basis": "exact",
        "target": model.target,
        "weights": model.weights,
        "weight_bytes": model.weight_bytes,
        "kv": model.kv,
        "state_bytes": _exported_states(model, context),
    }


def _exported_states(model: PlannedModel, context: int) -> dict[str, dict[str, int]]:
    """Bytes of one sequence by graph and kind of state."""
    attention = attention_of(model.spec, model.attention, kv=model.kv)
    graphs = {"backbone": attention.layers, "mtp": attention.mtp}
    states = {
        graph: state_bytes(ops, context=context, batch=1) for graph, ops in graphs.items() if ops
    }
    if model.geometry.linear:
        row_bytes = 4 if model.target == "cpu" else ROW_BYTES
        states["backbone"] |= model.geometry.linear.kept_bytes(row_bytes=row_bytes)
    return states


def memory_record(memory: MemoryPlan) -> dict[str, Any]:
    """The account, part by part."""
    return {
        "parts": [asdict(part) for part in memory.parts],
        "total_bytes": memory.total_bytes,
        "available_bytes": memory.available_bytes,
        "available_basis": memory.available_source,
        "usable_bytes": memory.usable_bytes,
        "head_room_bytes": memory.head_room_bytes,
        "build_peak_bytes": memory.build_peak_bytes,
        "build_room_bytes": memory.build_room_bytes,
        "fits": memory.fits,
    }


def speed_record(speed: Speed | None) -> dict[str, Any] | None:
    """Times at one length."""
    if speed is None:
        return None
    return {"basis": "estimate", **asdict(speed), "speedup": speed.speedup}


def _row(row: ContextRow) -> dict[str, Any]:
    return {
        "context": row.context,
        "memory": memory_record(row.memory),
        "speed": speed_record(row.speed),
        "sparse": speed_record(row.sparse),
    }


def _sizes(model: PlannedModel) -> dict[str, Any]:
    sizes = asdict(model.geometry)
    sizes.pop("name")
    return {**sizes, "backbone_parameters": model.geometry.backbone_parameters()}


def _choices(choices: Choices) -> dict[str, Any]:
    kept = asdict(choices)
    kept.pop("stored")
    kept["attention"] = "dense" if choices.attention is None else "as exported"
    return kept
