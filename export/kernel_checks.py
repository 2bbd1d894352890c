"""Geometries and contexts that no kernel of a board serves, refused before anything is written."""

from __future__ import annotations

from selfdraft.export.config import not_supported
from selfdraft.export.options import ExportOptions
from selfdraft.manifest import AttentionPlan, ModelSpec, capacity_for
from selfdraft.trt_plugins.cached_attention.from_manifest import layer_ops, mtp_op
from selfdraft.trt_plugins.cached_attention.launches import check_kernels


def check_board(
    spec: ModelSpec, attention: AttentionPlan | None, options: ExportOptions, *, context: int
) -> None:
    """Raise ``ConfigError`` where the target has kernels and one of them does not serve a layer."""
    if not options.engine.has_plugins:
        return
    if spec.delta is not None:
        raise not_supported(
            f"the recurrent state of {spec.family} on {options.engine.name}, which has no kernel for it,",
            hint="export it with --target cpu",
        )
    ops = set(layer_ops(spec, attention, kv_dtype=options.kv))
    if spec.mtp is not None:
        ops.add(mtp_op(spec, attention, kv_dtype=options.kv))
    for op in ops:
        check_kernels(op, blocks=capacity_for(context) // op.block)
