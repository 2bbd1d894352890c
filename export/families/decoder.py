"""Rules for the parts that all families share: decoder layer, embedding, norm and LM head."""

from __future__ import annotations

from dataclasses import replace

from selfdraft.errors import ConfigError
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.config import ConfigKeys
from selfdraft.export.families.base import LayerStyle, WeightRule
from selfdraft.export.families.geometry import EMBEDDING, Geometry

LM_HEAD = "lm_head.weight"


def layer_rules(
    target: str, prefix: str, geometry: Geometry, style: LayerStyle
) -> list[WeightRule]:
    """Rules of one decoder layer; ``target`` and ``prefix`` end with a dot."""
    norms = {"input_norm": "input_layernorm", "post_norm": "post_attention_layernorm"}
    if style.sandwich_norm:
        norms |= {"attention_out_norm": "post_self_attn_layernorm"}
        norms |= {"mlp_out_norm": "post_mlp_layernorm"}
    return [
        *(
            norm_rule(target + name, f"{prefix}{source}.weight", geometry.hidden_size, style)
            for name, source in norms.items()
        ),
        *_attention_rules(target, prefix + "self_attn.", geometry, style),
        *_mlp_rules(target, prefix + "mlp.", geometry, style),
    ]


def _attention_rules(
    target: str, prefix: str, geometry: Geometry, style: LayerStyle
) -> list[WeightRule]:
    hidden = geometry.hidden_size
    queries = geometry.num_heads * geometry.head_dim
    keys = geometry.num_kv_heads * geometry.head_dim
    qkv = {"q": queries, "k": keys, "v": keys}
    orders = (style.head_order, style.head_order, None) if style.head_order else ()
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
            rules.append(replace(rule, head_orders=orders[:1]))
    return rules


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


def backbone_rules(geometry: Geometry, style: LayerStyle, *, tied: bool) -> list[WeightRule]:
    """Rules of embedding, layers, final norm and, unless ``tied``, LM head.

    Factors on embedding and logits are folded in. A tied head shares the embedding's factor, so
    what the logits need beside it goes into the final norm.
    """
    table = (geometry.vocab_size, geometry.hidden_size)
    rules = [
        WeightRule(
            target="embedding",
            sources=(EMBEDDING,),
            layout="table",
            source_shapes=(table,),
            factor=style.embedding_factor,
        )
    ]
    for i in range(geometry.num_layers):
        rules += layer_rules(f"backbone.layers.{i}.", f"model.layers.{i}.", geometry, style)
    norm = norm_rule("backbone.norm", "model.norm.weight", geometry.hidden_size, style)
    if tied:
        rules.append(replace(norm, factor=style.logit_factor / style.embedding_factor))
    else:
        rules += [norm, replace(matrix_rule(LM_HEAD, {LM_HEAD: table}), factor=style.logit_factor)]
    return rules


def read_tied_head(
    checkpoint: Checkpoint, config: ConfigKeys, ignored: dict[str, str], *, default: bool
) -> bool:
    """Whether the LM head is the embedding table; a redundant copy is added to ``ignored``.

    ``default`` counts where config.json has no ``tie_word_embeddings``. Raises ``ConfigError``
    where key and tensors disagree.
    """
    said = config.flag("tie_word_embeddings")
    tied = default if said is None else said
    if LM_HEAD not in checkpoint.tensors:
        if not tied:
            raise ConfigError(
                f"tensor {LM_HEAD!r} is missing and config.json does not tie the embeddings",
                hint="fetch the complete checkpoint; if the head is meant to be the embedding "
                "table, set tie_word_embeddings to true in config.json",
            )
        return True
    if not tied:
        return False
    if not checkpoint.equal(LM_HEAD, EMBEDDING):
        where = (
            "config.json says" if said else "config.json has no tie_word_embeddings, which means"
        )
        raise ConfigError(
            f"{where} tie_word_embeddings = true, but tensor {LM_HEAD!r} differs from "
            f"{EMBEDDING!r}",
            hint="set tie_word_embeddings to false in config.json if the head is its own",
        )
    ignored[LM_HEAD] = "a copy of the embedding table (tie_word_embeddings)"
    return True


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
