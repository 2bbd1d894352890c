"""Geometries and contexts that no kernel of a board serves, refused before anything is written."""

from __future__ import annotations

from selfdraft.errors import ConfigError
from selfdraft.export.options import ExportOptions
from selfdraft.manifest import AttentionPlan, ModelSpec, capacity_for
from selfdraft.trt_plugins.cached_attention.from_manifest import layer_ops, mtp_op
from selfdraft.trt_plugins.cached_attention.launches import check_kernels
from selfdraft.trt_plugins.gated_delta_rule.contract import GatedDeltaRule
from selfdraft.trt_plugins.gated_delta_rule.from_manifest import delta_op

DELTA_DIMS = (64, 128)
DELTA_TAPS = 8


def check_board(
    spec: ModelSpec, attention: AttentionPlan | None, options: ExportOptions, *, context: int
) -> None:
    """Raise ``ConfigError`` where the target has kernels and one of them does not serve a layer."""
    if not options.engine.has_plugins:
        return
    delta = delta_op(spec, row_dtype=options.engine.plain)
    if delta is not None:
        _check_delta(delta)
    ops = set(layer_ops(spec, attention, kv_dtype=options.kv))
    if spec.mtp is not None:
        ops.add(mtp_op(spec, attention, kv_dtype=options.kv))
    for op in ops:
        check_kernels(op, blocks=capacity_for(context) // op.block)


def _check_delta(op: GatedDeltaRule) -> None:
    for found, served, wanted in (
        (f"key heads of {op.key_dim}", op.key_dim in DELTA_DIMS, "64 or 128"),
        (f"value heads of {op.value_dim}", op.value_dim in DELTA_DIMS, "64 or 128"),
        (f"convolutions of {op.taps} taps", op.taps <= DELTA_TAPS, f"at most {DELTA_TAPS}"),
    ):
        if not served:
            raise ConfigError(
                f"the kernels of GatedDeltaRule serve no {found} (they serve {wanted})",
                hint="export with --target cpu",
            )
