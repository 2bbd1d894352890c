"""Bundles with sparse attention: one that recites, and a random one with real graphs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from support.checkpoints import write_checkpoint
from support.reciting_bundle import write_manifest, write_reciting_bundle

from selfdraft.export.attention_options import AttentionOptions
from selfdraft.export.bundle import export_bundle
from selfdraft.export.options import ExportOptions
from selfdraft.manifest import AttentionPlan, AttentionSpec, load_manifest

SINKS, LOCAL, BUDGET = 1, 2, 320
"""Five blocks: a sink, two local ones, two chosen."""


def sparse_layer(**changes: Any) -> AttentionSpec:
    """A layer with the constants above."""
    values: dict[str, Any] = {"selector": "mean_std", "sinks": SINKS, "local_blocks": LOCAL}
    return AttentionSpec(**values | {"budget_tokens": BUDGET} | changes)


def write_sparse_reciter(folder: Path, *, context: int = 2048, **changes: Any) -> Path:
    """The reciting bundle with a sparse layer. Its queries are zero, so attention is uniform."""
    write_reciting_bundle(folder, endless=True, context=context)
    manifest = load_manifest(folder)
    plan = AttentionPlan(layers=(sparse_layer(**changes),), mtp=AttentionSpec())
    write_manifest(folder, dataclasses.replace(manifest, attention=plan))
    return folder


def export_sparse(folder: Path, *, context: int = 1024, **changes: Any) -> Path:
    """A random two-layer model with graphs and the constants above; returns the bundle."""
    checkpoint = write_checkpoint(folder / "checkpoint", "mimo", context=context)
    values: dict[str, Any] = {"sinks": SINKS, "local_blocks": LOCAL, "budget_tokens": BUDGET}
    attention = AttentionOptions(kind="sparse", **values | changes)
    export_bundle(checkpoint, folder / "bundle", ExportOptions(attention=attention))
    return folder / "bundle"
