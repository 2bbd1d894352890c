"""Rules for a decoder layer that attends, as all families share it."""

from __future__ import annotations

from dataclasses import replace

from selfdraft.export.families.base import HeadOrder, LayerStyle, WeightRule
from selfdraft.export.families.geometry import Geometry


def layer_rules(
    target: str, prefix: str, geometry: Geometry, style: LayerStyle
) -> list[WeightRule]:
    """Rules of one decoder layer; ``target`` and ``prefix`` end with a dot."""
    return [
        *_attention_rules(target, prefix + "self_attn.", geometry, style),
        *end_rules(target, prefix, geometry, style),
    ]


def end_rules(target: str, prefix: str, geometry: Geometry, style: LayerStyle) -> list[WeightRule]:
    """Rules of a layer's norms and MLP."""
    norms = {"input_norm": "input_layernorm", "post_norm": "post_attention_layernorm"}
    if style.sandwich_norm:
        norms |= {"attention_out_norm": "post_self_attn_layernorm"}
        norms |= {"mlp_out_norm": "post_mlp_layernorm"}
    return [
        *(
            norm_rule(target + name, f"{prefix}{source}.weight", geometry.hidden_size, style)
            for name, source in norms.items()
        ),
        *_mlp_rules(target, prefix + "mlp.", geometry, style),
    ]


def _attention_rules(
    target: str, prefix: str, geometry: Geometry, style: LayerStyle
) -> list[WeightRule]:
    hidden = geometry.hidden_size
    queries = geometry.num_heads * geometry.head_dim
    keys = geometry.num_kv_heads * geometry.head_dim
    qkv = {"q": (2 if geometry.attention_gate else 1) * queries, "k": keys, "v": keys}
    orders = (_query_order(geometry, style), style.head_order, None) if style.head_order else ()
    joined = matrix_rule(
        target + "qkv.weight",
        {f"{prefix}{name}_proj.weight": (size, hidden) for name, size in qkv.items()},
    )
    out = matrix_rule(target + "o.weight", {prefix + "o_proj.weight": (hidden, queries)})
    rules = [replace(joined, head_orders=orders), replace(out, factor=style.residual_factor)]
    if geometry.qkv_bias:
        rules.append(
            WeightRule(
                target=target + "qkv.bias",
                sources=tuple(f"{prefix}{name}_proj.bias" for name in qkv),
                layout="vector",
                source_shapes=tuple((size,) for size in qkv.values()),
                head_orders=orders,
            )
        )
    if geometry.qk_norm:
        for name in ("q_norm", "k_norm"):
            rule = norm_rule(target + name, f"{prefix}{name}.weight", geometry.head_dim, style)
            rules.append(replace(rule, head_orders=orders[1:2]))
    return rules


def _query_order(geometry: Geometry, style: LayerStyle) -> HeadOrder | None:
    """The order inside a head's query and the gate behind it, which is not rotated."""
    if style.head_order is None or not geometry.attention_gate:
        return style.head_order
    return (*style.head_order, *range(geometry.head_dim, 2 * geometry.head_dim))


def _mlp_rules(target: str, prefix: str, geometry: Geometry, style: LayerStyle) -> list[WeightRule]:
    hidden, wide = geometry.hidden_size, geometry.intermediate_size
    parts = {"gate_proj": (wide, hidden), "up_proj": (wide, hidden)}
    if style.fused_gate_up:
        parts = {"gate_up_proj": (2 * wide, hidden)}
    down = matrix_rule(target + "down.weight", {prefix + "down_proj.weight": (hidden, wide)})
    return [
        matrix_rule(
            target + "gate_up.weight",
            {f"{prefix}{name}.weight": shape for name, shape in parts.items()},
        ),
        replace(down, factor=style.residual_factor),
    ]


def norm_rule(target: str, source: str, size: int, style: LayerStyle) -> WeightRule:
    """A rule for the weight of an RMSNorm, stored so that it multiplies."""
    return WeightRule(
        target=target,
        sources=(source,),
        layout="vector",
        source_shapes=((size,),),
        offset=style.norm_offset,
    )


def matrix_rule(target: str, sources: dict[str, tuple[int, int]]) -> WeightRule:
    """A rule that joins matrices ``[out, in]`` along out and stores them transposed."""
    return WeightRule(
        target=target,
        sources=tuple(sources),
        layout="matrix",
        source_shapes=tuple(sources.values()),
    )
