"""Sizes of a model, taken from its tensors; config keys are checked against them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from selfdraft.errors import ConfigError
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.config import ConfigKeys
from selfdraft.export.families.base import Family
from selfdraft.recurrent import DeltaSpec

EMBEDDING = "model.embed_tokens.weight"
LAYER = re.compile(r"model\.layers\.(\d+)\.")
MTP_LAYER = re.compile(r"model\.layers\.(\d+)\.(eh_proj|enorm|hnorm)\.")
"""Layers behind the last one that hold an MTP head (DeepSeek's naming)."""
CLASH_HINT = "config.json and weights come from different checkpoints: fetch both again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Sizes that fix the shape of every tensor of the decoder."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    qkv_bias: bool
    qk_norm: bool
    attention_gate: bool = False
    delta: DeltaSpec | None = None

    def is_delta(self, layer: int) -> bool:
        """Whether a backbone layer is a gated delta net."""
        return self.delta is not None and layer in self.delta.layers


def read_geometry(checkpoint: Checkpoint, config: ConfigKeys, family: Family) -> Geometry:
    """Sizes from tensor shapes. Raises ``ConfigError`` naming a config key that clashes."""
    vocab, hidden = _matrix_shape(checkpoint, EMBEDDING)
    _agree(config, "vocab_size", vocab, checkpoint, EMBEDDING)
    _agree(config, "hidden_size", hidden, checkpoint, EMBEDDING)
    num_layers = _count_layers(checkpoint, config)
    first = f"model.layers.{_attention_layer(checkpoint, family, num_layers)}."
    gate = first + ("mlp.gate_up_proj.weight" if family.fused_gate_up else "mlp.gate_proj.weight")
    intermediate = _matrix_shape(checkpoint, gate)[0] // (2 if family.fused_gate_up else 1)
    _agree(config, "intermediate_size", intermediate, checkpoint, gate)
    head_dim = _head_dim(checkpoint, config, family, hidden, first=first)
    gated = 2 if family.attention_gate else 1
    heads = _heads(
        checkpoint, config, f"{first}self_attn.q_proj", "num_attention_heads", gated * head_dim
    )
    kv_heads = _heads(
        checkpoint, config, f"{first}self_attn.k_proj", "num_key_value_heads", head_dim
    )
    if heads % kv_heads:
        raise ConfigError(
            f"{heads} query heads do not share {kv_heads} key heads evenly (head_dim {head_dim})",
            hint=CLASH_HINT,
        )
    return Geometry(
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=intermediate,
        qkv_bias=_qkv_bias(checkpoint, config, family, first=first),
        qk_norm=family.qk_norm,
        attention_gate=family.attention_gate,
    )


def _attention_layer(checkpoint: Checkpoint, family: Family, num_layers: int) -> int:
    """The first layer that attends: its tensors tell the sizes of heads."""
    if not family.hybrid:
        return 0
    for layer in range(num_layers):
        if f"model.layers.{layer}.self_attn.q_proj.weight" in checkpoint.tensors:
            return layer
    raise ConfigError(
        f"none of {num_layers} layers has tensor 'self_attn.q_proj.weight'",
        hint="fetch the complete checkpoint, with every shard",
    )


def mtp_layers(checkpoint: Checkpoint) -> dict[int, str]:
    """Layers ``model.layers.N`` that are an MTP head, each with a tensor that tells."""
    return {int(m[1]): name for name in checkpoint.names() if (m := MTP_LAYER.match(name))}


def clash(key: str, value: object, what: str, shape: tuple[int, ...]) -> ConfigError:
    """The error for a config key that a tensor contradicts."""
    return ConfigError(
        f"config.json says {key} = {value}, but tensor {what!r} has shape {list(shape)}",
        hint=CLASH_HINT,
    )


def _agree(config: ConfigKeys, key: str, found: int, checkpoint: Checkpoint, tensor: str) -> None:
    value = config.positive(key)
    if value is not None and value != found:
        raise clash(key, value, tensor, checkpoint.shape(tensor))


def _matrix_shape(checkpoint: Checkpoint, name: str) -> tuple[int, int]:
    shape = checkpoint.shape(name)
    if len(shape) != 2 or 0 in shape:
        raise ConfigError(
            f"tensor {name!r} has shape {list(shape)}, expected a matrix [out, in]",
            hint="fetch the checkpoint again, in bf16, fp16 or fp32",
        )
    return shape[0], shape[1]


def _count_layers(checkpoint: Checkpoint, config: ConfigKeys) -> int:
    heads = mtp_layers(checkpoint)
    layers = {
        int(m[1]): name
        for name in checkpoint.names()
        if (m := LAYER.match(name)) and int(m[1]) not in heads
    }
    count = next(i for i in range(len(layers) + 1) if i not in layers)
    said = config.positive("num_hidden_layers")
    if count < len(layers) or count == 0 or (said is not None and said > count):
        raise ConfigError(
            f"tensor 'model.layers.{count}.input_layernorm.weight' is missing; config.json says "
            f"num_hidden_layers = {said}",
            hint="fetch the complete checkpoint, with every shard",
        )
    if said is not None and said < count:
        name = layers[count - 1]
        raise clash("num_hidden_layers", said, name, checkpoint.shape(name))
    return count


def _head_dim(
    checkpoint: Checkpoint, config: ConfigKeys, family: Family, hidden: int, *, first: str
) -> int:
    said = config.positive("head_dim")
    if family.qk_norm:
        norm = f"{first}self_attn.q_norm.weight"
        shape = checkpoint.shape(norm)
        if len(shape) != 1 or shape[0] < 1 or (said is not None and said != shape[0]):
            raise clash("head_dim", said, norm, shape)
        return shape[0]
    if said is not None:
        return said
    heads = config.positive("num_attention_heads")
    if heads is None or hidden % heads:
        raise ConfigError(
            f"config.json has no head_dim, and hidden size {hidden} does not divide into "
            f"num_attention_heads = {heads}",
            hint="restore the config.json that came with the checkpoint",
        )
    return hidden // heads


def _heads(checkpoint: Checkpoint, config: ConfigKeys, proj: str, key: str, head_dim: int) -> int:
    tensor = f"{proj}.weight"
    rows = _matrix_shape(checkpoint, tensor)[0]
    said = config.positive(key)
    if rows % head_dim or (said is not None and said * head_dim != rows):
        raise clash(f"head_dim = {head_dim}, {key}", said, tensor, checkpoint.shape(tensor))
    return rows // head_dim


def _qkv_bias(checkpoint: Checkpoint, config: ConfigKeys, family: Family, *, first: str) -> bool:
    if family.qkv_bias == "always":
        return True
    bias = f"{first}self_attn.q_proj.bias"
    present = bias in checkpoint.tensors
    said = config.flag("attention_bias")
    if said is not None and said != present:
        word = "is there" if present else "is missing"
        raise ConfigError(
            f"config.json says attention_bias = {str(said).lower()}, but tensor {bias!r} {word}",
            hint=CLASH_HINT,
        )
    return present
