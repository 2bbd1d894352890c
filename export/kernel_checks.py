"""Geometries and contexts that no kernel of a board serves, refused before anything is written."""

from __future__ import annotations

from selfdraft.export.options import ExportOptions
from selfdraft.manifest import AttentionPlan, ModelSpec, capacity_for
from selfdraft.trt_plugins.cached_attention.from_manifest import layer_ops, mtp_op
from selfdraft.trt_plugins.cached_attention.launches import check_kernels
from selfdraft.trt_plugins.gated_delta_rule import launches as delta_launches
from selfdraft.trt_plugins.gated_delta_rule.from_manifest import delta_op


def check_board(
    spec: ModelSpec, attention: AttentionPlan | None, options: ExportOptions, *, context: int
) -> None:
    """Raise ``ConfigError`` where the target has kernels and one of them does not serve a layer."""
    if not options.engine.has_plugins:
        return
    delta = delta_op(spec, row_dtype=options.engine.plain)
    if delta is not None:
        delta_launches.check_kernels(delta)
    ops = set(layer_ops(spec, attention, kv_dtype=options.kv))
    if spec.mtp is not None:
        ops.add(mtp_op(spec, attention, kv_dtype=options.kv))
    for op in ops:
        check_kernels(op, blocks=capacity_for(context) // op.block)
