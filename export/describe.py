"""What a checkpoint is and what an export of it would do, as plain values."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from selfdraft.errors import ConfigError
from selfdraft.export.bundle import ExportPlan, plan_export
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.config import ConfigKeys
from selfdraft.export.families.mtp_layouts import COUNT_KEYS
from selfdraft.export.hub import snapshot_commit
from selfdraft.export.options import ExportOptions
from selfdraft.export.source import source_name

PLANS: dict[str, ExportOptions] = {
    "default": ExportOptions(),
    "int4": ExportOptions(weights="int4"),
}
"""Exports whose size is told."""


def describe_checkpoint(path: Path) -> dict[str, Any]:
    """Facts of the checkpoint at ``path``.

    Raises ``ConfigError`` where it cannot be read at all; what an export would refuse is told.
    """
    checkpoint = Checkpoint.open(path)
    facts: dict[str, Any] = {
        "checkpoint": str(path),
        "name": source_name(path),
        "revision": snapshot_commit(path),
        "architectures": checkpoint.config.get("architectures"),
        "tensors": len(checkpoint.names()),
        "bytes": checkpoint.num_bytes,
        "bytes_by_type": _bytes_by_type(checkpoint),
        "packed": _packed(checkpoint),
        "left_out": dict(checkpoint.left_out),
    }
    try:
        plan = plan_export(path, PLANS["default"])
    except ConfigError as error:
        refusal = {"problem": error.problem, "hint": error.hint}
        return facts | {"model": None, "mtp": _no_plan(checkpoint), "refused": refusal}
    model = asdict(plan.model.spec)
    model["rope"] = {"frequencies": len(plan.model.spec.rope.inv_freq)}
    return facts | {
        "model": model,
        "mtp": _mtp(checkpoint, plan),
        "refused": None,
        "max_context": plan.model.max_context,
        "bytes_by_part": _bytes_by_part(checkpoint, plan),
        "export": {name: _export_facts(path, options) for name, options in PLANS.items()},
        "ignored": plan.model.ignored,
        "notes": plan.notes,
    }


def _export_facts(path: Path, options: ExportOptions) -> dict[str, Any]:
    try:
        plan = plan_export(path, options)
    except ConfigError as error:
        return {"refused": error.problem}
    selectors = {layer.selector for layer in plan.attention.layers} if plan.attention else {"all"}
    return {
        "refused": None,
        "weights": plan.weights.type_of("backbone."),
        "int4_block": plan.weights.int4_block,
        "disk_bytes_at_most": plan.num_bytes,
        "context_length": plan.limits.context_length,
        "selectors": sorted(selectors),
    }


def _bytes_by_type(checkpoint: Checkpoint) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for _, entry in {**checkpoint.tensors, **checkpoint.parts}.values():
        if entry.length:
            sizes[entry.dtype] = sizes.get(entry.dtype, 0) + entry.length
    return dict(sorted(sizes.items()))


def _packed(checkpoint: Checkpoint) -> dict[str, Any] | None:
    if not checkpoint.packed:
        return None
    linears = list(checkpoint.packed.values())
    return {
        "method": linears[0].packing.method,
        "linears": len(linears),
        "groups": sorted({linear.group for linear in linears}),
        "act_order": any(linear.order is not None for linear in linears),
    }


def _bytes_by_part(checkpoint: Checkpoint, plan: ExportPlan) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for rule in plan.model.rules:
        part = rule.target.split(".")[0]
        for name in rule.sources:
            linear = checkpoint.packed.get(name)
            names = linear.parts.values() if linear else (name,)
            places = [checkpoint.parts.get(n) or checkpoint.tensors[n] for n in names]
            sizes[part] = sizes.get(part, 0) + sum(entry.length for _, entry in places)
    return sizes


def _promised(checkpoint: Checkpoint) -> dict[str, int]:
    config = ConfigKeys(checkpoint.config)
    return {key: count for key in COUNT_KEYS if (count := config.integer(key))}


def _mtp(checkpoint: Checkpoint, plan: ExportPlan) -> dict[str, Any]:
    """Whether a head is there, and by what that is known."""
    promised = ", ".join(f"{key} = {count}" for key, count in _promised(checkpoint).items())
    asked = f"config.json says {promised}" if promised else "no config key asks for it"
    if plan.model.spec.mtp is None:
        return {"found": False, "why": f"no tensors of a known naming, and {asked}"}
    rule = next(rule for rule in plan.model.rules if rule.target == "mtp.proj.weight")
    count = sum(len(r.sources) for r in plan.model.rules if r.target.startswith("mtp."))
    why = f"{count} tensors around {rule.sources[0]!r}; {asked}"
    return {"found": True, "why": why, "disputed_tap": plan.model.disputed_tap}


def _no_plan(checkpoint: Checkpoint) -> dict[str, Any]:
    promised = ", ".join(f"{key} = {count}" for key, count in _promised(checkpoint).items())
    said = f"config.json says {promised}" if promised else "config.json promises none"
    return {"found": None, "why": f"not looked for, since an export is refused; {said}"}
