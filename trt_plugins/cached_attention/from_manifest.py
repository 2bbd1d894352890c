"""The op's attributes for each layer of a model, from its manifest records."""

from __future__ import annotations

from selfdraft.manifest import AttentionPlan, AttentionSpec, ModelSpec
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention, KvDtype


def layer_ops(
    spec: ModelSpec, plan: AttentionPlan | None, *, kv_dtype: KvDtype = "fp32"
) -> tuple[CachedAttention, ...]:
    """One op for each backbone layer that attends (``spec.attention_layers``)."""
    layers = plan.layers if plan else (AttentionSpec(),) * spec.num_layers
    assert len(layers) == spec.num_layers, (
        f"{len(layers)} attention specs, {spec.num_layers} layers"
    )
    return tuple(_op(spec, layers[layer], kv_dtype) for layer in spec.attention_layers)


def mtp_op(
    spec: ModelSpec, plan: AttentionPlan | None, *, kv_dtype: KvDtype = "fp32"
) -> CachedAttention:
    """The op of the MTP head's layer."""
    return _op(spec, (plan.mtp if plan else None) or AttentionSpec(), kv_dtype)


def _op(spec: ModelSpec, layer: AttentionSpec, kv_dtype: KvDtype) -> CachedAttention:
    return CachedAttention(
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        scale=spec.head_dim**-0.5,
        sinks=layer.sinks,
        local_blocks=layer.local_blocks,
        budget_tokens=layer.budget_tokens,
        budget_share=layer.budget_share,
        spread=layer.spread,
        selector=layer.selector,
        sliding_window=layer.sliding_window,
        kv_dtype=kv_dtype,
    )
