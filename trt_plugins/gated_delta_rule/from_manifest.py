"""The op of every backbone layer, attention or gated delta rule, from a model's manifest records."""

from __future__ import annotations

from selfdraft.manifest import AttentionPlan, ModelSpec
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention, KvDtype
from selfdraft.trt_plugins.cached_attention.from_manifest import layer_ops
from selfdraft.trt_plugins.gated_delta_rule.contract import GatedDeltaRule, RowDtype

LayerOp = CachedAttention | GatedDeltaRule


def backbone_ops(
    spec: ModelSpec,
    plan: AttentionPlan | None,
    *,
    kv_dtype: KvDtype = "fp32",
    row_dtype: RowDtype = "fp32",
) -> tuple[LayerOp, ...]:
    """One op for each backbone layer, in order; ``row_dtype``: of gated delta nets."""
    attention = iter(layer_ops(spec, plan, kv_dtype=kv_dtype))
    delta = delta_op(spec, row_dtype=row_dtype)
    return tuple(
        delta if delta is not None and spec.is_delta(layer) else next(attention)
        for layer in range(spec.num_layers)
    )


def delta_op(spec: ModelSpec, *, row_dtype: RowDtype = "fp32") -> GatedDeltaRule | None:
    """The op of a hybrid model's linear attention; None: every layer attends."""
    if spec.delta is None:
        return None
    return GatedDeltaRule(
        num_key_heads=spec.delta.num_key_heads,
        num_value_heads=spec.delta.num_value_heads,
        key_dim=spec.delta.key_dim,
        value_dim=spec.delta.value_dim,
        taps=spec.delta.taps,
        row_dtype=row_dtype,
    )
