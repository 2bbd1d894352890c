"""Gated delta net layers of a hybrid model: which they are, their sizes, and their rules."""

from __future__ import annotations

import re
from dataclasses import replace

from selfdraft.errors import ConfigError
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.config import ConfigKeys
from selfdraft.export.families.base import LayerStyle, WeightRule
from selfdraft.export.families.decoder import end_rules, matrix_rule, norm_rule
from selfdraft.export.families.geometry import CLASH_HINT, Geometry, clash
from selfdraft.recurrent import DeltaSpec

DELTA_LAYER = re.compile(r"model\.layers\.(\d+)\.linear_attn\.in_proj_qkv\.weight")
KINDS = ("full_attention", "linear_attention")
_HEAD_KEYS = ("linear_num_key_heads", "linear_num_value_heads")
_DIM_KEYS = ("linear_key_head_dim", "linear_value_head_dim")


def read_delta(checkpoint: Checkpoint, config: ConfigKeys, *, num_layers: int) -> DeltaSpec | None:
    """The linear layers; None where every layer attends.

    Tensors decide which layers those are, and the sizes that they tell; config keys are checked
    against them. Raises ``ConfigError`` naming a key that clashes.
    """
    found = {int(m[1]) for name in checkpoint.names() if (m := DELTA_LAYER.match(name))}
    layers = tuple(sorted(layer for layer in found if layer < num_layers))
    _check_kinds(config, layers, num_layers)
    if not layers:
        return None
    prefix = f"model.layers.{layers[0]}.linear_attn."
    (value_heads,) = _sizes(checkpoint, prefix + "A_log", 1)
    (value_dim,) = _sizes(checkpoint, prefix + "norm.weight", 1)
    conv = prefix + "conv1d.weight"
    channels, _, taps = _sizes(checkpoint, conv, 3)
    key_size = (channels - value_heads * value_dim) // 2
    key_heads, key_dim = (config.positive(key) for key in (_HEAD_KEYS[0], _DIM_KEYS[0]))
    key_heads, key_dim = _key_sizes(key_heads, key_dim, key_size, conv)
    said = {_HEAD_KEYS[1]: value_heads, _DIM_KEYS[1]: value_dim, "linear_conv_kernel_dim": taps}
    for key, size in said.items():
        if config.positive(key) not in (None, size):
            raise clash(key, config.positive(key), conv, checkpoint.shape(conv))
    if value_heads % key_heads:
        raise ConfigError(
            f"{value_heads} value heads do not share {key_heads} key heads evenly", hint=CLASH_HINT
        )
    return DeltaSpec(
        layers=layers,
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        taps=taps,
    )


def _sizes(checkpoint: Checkpoint, tensor: str, dims: int) -> tuple[int, ...]:
    """Shape of a tensor that has so many dimensions, none of them empty."""
    shape = checkpoint.shape(tensor)
    if len(shape) != dims or min(shape) < 1:
        raise ConfigError(
            f"tensor {tensor!r} has shape {list(shape)}, expected {dims} dimensions of 1 or more",
            hint=CLASH_HINT,
        )
    return shape


def _key_sizes(heads: int | None, dim: int | None, size: int, tensor: str) -> tuple[int, int]:
    """Key heads and their width, of which the tensors tell the product ``size`` alone."""
    if heads is None and dim is None:
        raise ConfigError(
            f"config.json has neither {_HEAD_KEYS[0]} nor {_DIM_KEYS[0]}",
            hint="restore the config.json that came with the checkpoint",
        )
    heads = heads or size // (dim or 1)
    dim = dim or size // heads
    if size < 1 or heads * dim != size:
        raise ConfigError(
            f"config.json says {_HEAD_KEYS[0]} = {heads} and {_DIM_KEYS[0]} = {dim}, but tensor "
            f"{tensor!r} leaves {size} channels for the keys",
            hint=CLASH_HINT,
        )
    return heads, dim


def _check_kinds(config: ConfigKeys, layers: tuple[int, ...], num_layers: int) -> None:
    """Refuse ``layer_types`` or ``full_attention_interval`` that the tensors contradict."""
    kinds = config.values.get("layer_types")
    interval = config.positive("full_attention_interval")
    if kinds is not None:
        key, wanted = "layer_types", _listed_kinds(kinds, num_layers)
    elif interval is not None:
        key = f"full_attention_interval = {interval}"
        wanted = [bool((i + 1) % interval) for i in range(num_layers)]
    else:
        return
    for layer, linear in enumerate(wanted):
        if linear != (layer in layers):
            word = "has" if layer in layers else "has no"
            raise ConfigError(
                f"config.json: by {key} layer {layer} is "
                f"{'linear' if linear else 'full'} attention, but it {word} "
                f"'model.layers.{layer}.linear_attn.in_proj_qkv.weight'",
                hint=CLASH_HINT,
            )


def _listed_kinds(kinds: object, num_layers: int) -> list[bool]:
    """Whether each layer is linear, by ``layer_types``."""
    listed = kinds if isinstance(kinds, list) else [kinds]
    unknown = [kind for kind in listed if kind not in KINDS]
    if unknown or len(listed) != num_layers:
        raise ConfigError(
            f"config.json: layer_types has {len(listed)} entries for {num_layers} layers"
            + (f", one of them {unknown[0]!r}" if unknown else ""),
            hint=f"restore the config.json that came with the checkpoint; known: {', '.join(KINDS)}",
        )
    return [kind == "linear_attention" for kind in listed]


def delta_rules(
    target: str, prefix: str, geometry: Geometry, style: LayerStyle
) -> list[WeightRule]:
    """Rules of one gated delta net layer; ``target`` and ``prefix`` end with a dot."""
    delta, hidden, inner = geometry.delta, geometry.hidden_size, f"{prefix}linear_attn."
    assert delta is not None
    heads, values = delta.num_value_heads, delta.num_value_heads * delta.value_dim
    channels = 2 * delta.num_key_heads * delta.key_dim + values
    conv = WeightRule(
        target=target + "conv",
        sources=(inner + "conv1d.weight",),
        layout="channels",
        source_shapes=((channels, 1, delta.taps),),
    )
    plain = replace(style, norm_offset=0.0)
    return [
        matrix_rule(
            target + "in_proj.weight",
            {
                inner + "in_proj_qkv.weight": (channels, hidden),
                inner + "in_proj_z.weight": (values, hidden),
            },
        ),
        matrix_rule(
            target + "gates.weight",
            {f"{inner}in_proj_{name}.weight": (heads, hidden) for name in "ba"},
        ),
        conv,
        norm_rule(target + "a_log", inner + "A_log", heads, plain),
        norm_rule(target + "dt_bias", inner + "dt_bias", heads, plain),
        norm_rule(target + "delta_norm", inner + "norm.weight", delta.value_dim, plain),
        matrix_rule(target + "o.weight", {inner + "out_proj.weight": (hidden, values)}),
        *end_rules(target, prefix, geometry, style),
    ]
