"""Rules for the parts that all families share: decoder layer, embedding, norm and LM head."""

from __future__ import annotations

from selfdraft.errors import ConfigError
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.config import ConfigKeys
from selfdraft.export.families.base import WeightRule
from selfdraft.export.families.geometry import EMBEDDING, Geometry

LM_HEAD = "lm_head.weight"


def layer_rules(target: str, prefix: str, geometry: Geometry) -> list[WeightRule]:
    """Rules of one decoder layer; ``target`` and ``prefix`` end with a dot."""
    hidden, wide = geometry.hidden_size, geometry.intermediate_size
    queries = geometry.num_heads * geometry.head_dim
    keys = geometry.num_kv_heads * geometry.head_dim
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    qkv = {"q": queries, "k": keys, "v": keys}
    rules = [
        vector_rule(target + "input_norm", prefix + "input_layernorm.weight", hidden),
        matrix_rule(
            target + "qkv.weight",
            {f"{attention}{name}_proj.weight": (size, hidden) for name, size in qkv.items()},
        ),
        matrix_rule(target + "o.weight", {attention + "o_proj.weight": (hidden, queries)}),
        vector_rule(target + "post_norm", prefix + "post_attention_layernorm.weight", hidden),
        matrix_rule(
            target + "gate_up.weight",
            {mlp + "gate_proj.weight": (wide, hidden), mlp + "up_proj.weight": (wide, hidden)},
        ),
        matrix_rule(target + "down.weight", {mlp + "down_proj.weight": (hidden, wide)}),
    ]
    if geometry.qkv_bias:
        rules.append(
            WeightRule(
                target=target + "qkv.bias",
                sources=tuple(f"{attention}{name}_proj.bias" for name in qkv),
                layout="vector",
                source_shapes=tuple((size,) for size in qkv.values()),
            )
        )
    if geometry.qk_norm:
        for name in ("q_norm", "k_norm"):
            source = f"{attention}{name}.weight"
            rules.append(vector_rule(target + name, source, geometry.head_dim))
    return rules


def backbone_rules(geometry: Geometry, *, tied: bool) -> list[WeightRule]:
    """Rules of embedding, layers, final norm and, unless ``tied``, LM head."""
    table = (geometry.vocab_size, geometry.hidden_size)
    rules = [
        WeightRule(target="embedding", sources=(EMBEDDING,), layout="table", source_shapes=(table,))
    ]
    for i in range(geometry.num_layers):
        rules += layer_rules(f"backbone.layers.{i}.", f"model.layers.{i}.", geometry)
    rules.append(vector_rule("backbone.norm", "model.norm.weight", geometry.hidden_size))
    if not tied:
        rules.append(matrix_rule("lm_head.weight", {LM_HEAD: table}))
    return rules


def read_tied_head(checkpoint: Checkpoint, config: ConfigKeys, ignored: dict[str, str]) -> bool:
    """Whether the LM head is the embedding table; a redundant copy is added to ``ignored``.

    ``tie_word_embeddings`` defaults to false in every family. Raises ``ConfigError`` where key
    and tensors disagree.
    """
    tied = config.flag("tie_word_embeddings") or False
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
        raise ConfigError(
            f"config.json says tie_word_embeddings = true, but tensor {LM_HEAD!r} differs from "
            f"{EMBEDDING!r}",
            hint="set tie_word_embeddings to false in config.json if the head is its own",
        )
    ignored[LM_HEAD] = "a copy of the embedding table (tie_word_embeddings)"
    return True


def vector_rule(target: str, source: str, size: int) -> WeightRule:
    """A rule that keeps one vector as it is."""
    return WeightRule(target=target, sources=(source,), layout="vector", source_shapes=((size,),))


def matrix_rule(target: str, sources: dict[str, tuple[int, int]]) -> WeightRule:
    """A rule that joins matrices ``[out, in]`` along out and stores them transposed."""
    return WeightRule(
        target=target,
        sources=tuple(sources),
        layout="matrix",
        source_shapes=tuple(sources.values()),
    )
