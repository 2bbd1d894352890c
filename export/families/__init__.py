"""Model families: what a checkpoint is, and where each of its tensors goes."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace

from selfdraft.errors import ConfigError
from selfdraft.export.checkpoint import Checkpoint, is_float
from selfdraft.export.config import ConfigKeys, not_supported
from selfdraft.export.families.backbone import backbone_rules, read_tied_head
from selfdraft.export.families.base import Family, LayerStyle, ModelPlan, WeightRule
from selfdraft.export.families.delta_net import read_delta
from selfdraft.export.families.geometry import Geometry, read_geometry
from selfdraft.export.families.glm4 import GLM4, GLM_OCR
from selfdraft.export.families.llama import LLAMA
from selfdraft.export.families.mimo import MIMO
from selfdraft.export.families.minicpm import MINICPM, read_scalings, read_sparse_config
from selfdraft.export.families.mtp_layouts import MtpPlan, new_mtp, read_mtp
from selfdraft.export.families.qwen2 import QWEN2
from selfdraft.export.families.qwen3 import QWEN3
from selfdraft.export.families.qwen3_5 import QWEN3_5
from selfdraft.export.families.rope import head_order, read_rope, rotated_dims
from selfdraft.manifest import DEFAULT_CONTEXT, ModelSpec, RopeSpec

__all__ = [
    "FAMILIES",
    "Family",
    "ModelPlan",
    "WeightRule",
    "find_family",
    "head_plan",
    "read_model",
]

FAMILIES = (MIMO, QWEN2, QWEN3, QWEN3_5, LLAMA, MINICPM, GLM4, GLM_OCR)
MIXED_EXPERTS = re.compile(r"Qwen3_5Moe|Qwen3Next|qwen3_5_moe|qwen3_next")
"""Hybrid models whose MLPs are mixtures of experts."""
IGNORED = {
    re.compile(r"(model\.(layers|mtp_layers)|mtp\.layers)\.\d+\.self_attn\.rotary_emb\.inv_freq"): (
        "rotary frequencies are computed from config.json"
    ),
}


def read_model(checkpoint: Checkpoint, *, context: int | None = None) -> ModelPlan:
    """Geometry, weight rules and notes of a checkpoint.

    Geometry comes from tensor shapes. Every tensor is used exactly once or listed in
    ``ignored``. ``context``: tokens that the bundle will hold; None: all that the config allows, at
    most ``DEFAULT_CONTEXT``. Raises ``ConfigError`` naming the key or tensor that is unknown,
    missing, misshaped or not supported.
    """
    config = ConfigKeys(checkpoint.config)
    family, architecture = find_family(config)
    _refuse_other_arithmetic(config, family)
    ignored: dict[str, str] = {}
    notes: list[str] = list(checkpoint.left_out.values())
    if "auto_map" in checkpoint.config:
        notes.append("the checkpoint brings its own code (auto_map): it is not run")
    geometry = _geometry(checkpoint, config, family)
    max_context = config.positive("max_position_embeddings") or family.max_position_embeddings
    rotated = rotated_dims(config, family, head_dim=geometry.head_dim)
    style = _style(config, family, geometry, rotated=rotated)
    tied = read_tied_head(checkpoint, config, ignored, default=family.tied_default)
    mtp = read_mtp(checkpoint, config, family, geometry, style, notes)
    _refuse_scaled_tap(style, tied=tied, mtp=mtp)
    rules = [*backbone_rules(geometry, style, tied=tied), *(mtp.rules if mtp else ())]
    ignored |= mtp.copies if mtp else {}
    _check_sources(checkpoint, rules)
    _check_leftovers(checkpoint, rules, ignored)
    rope = read_rope(
        config,
        head_dim=geometry.head_dim,
        rotated=rotated,
        default_theta=family.rope_theta,
        context=min(max_context, DEFAULT_CONTEXT) if context is None else context,
    )
    return ModelPlan(
        spec=_spec(config, family, geometry, tied=tied, mtp=mtp, rope=rope),
        rules=tuple(rules),
        ignored={**checkpoint.left_out, **ignored},
        notes=tuple(notes),
        architecture=architecture,
        max_context=max_context,
        sparse=read_sparse_config(config) if family.sparse_config else None,
        disputed_tap=mtp is not None and mtp.disputed_tap,
    )


def head_plan(checkpoint: Checkpoint) -> MtpPlan:
    """The MTP head that a checkpoint without one would have, in its family's own naming.

    Raises ``ConfigError`` where the model's scalings leave no tap for a head.
    """
    config = ConfigKeys(checkpoint.config)
    family, _ = find_family(config)
    geometry = _geometry(checkpoint, config, family)
    rotated = rotated_dims(config, family, head_dim=geometry.head_dim)
    style = _style(config, family, geometry, rotated=rotated)
    tied = read_tied_head(checkpoint, config, {}, default=family.tied_default)
    plan = new_mtp(family.mtp_naming, geometry, style)
    _refuse_scaled_tap(style, tied=tied, mtp=plan)
    return plan


def _geometry(checkpoint: Checkpoint, config: ConfigKeys, family: Family) -> Geometry:
    geometry = read_geometry(checkpoint, config, family)
    if not family.hybrid:
        return geometry
    delta = read_delta(checkpoint, config, num_layers=geometry.num_layers)
    return replace(geometry, delta=delta)


def _style(config: ConfigKeys, family: Family, geometry: Geometry, *, rotated: int) -> LayerStyle:
    return LayerStyle(
        norm_offset=family.norm_offset,
        sandwich_norm=family.sandwich_norm,
        fused_gate_up=family.fused_gate_up,
        head_order=head_order(family.rotary_form, head_dim=geometry.head_dim, rotated=rotated),
        **(read_scalings(config, geometry) if family.scalings else {}),
    )


def _refuse_scaled_tap(style: LayerStyle, *, tied: bool, mtp: MtpPlan | None) -> None:
    """A tied head's factors go into the final norm, where a tap behind it would see them."""
    if mtp is not None and tied and style.logit_factor != style.embedding_factor:
        raise not_supported(
            "an MTP head on a tied LM head with scalings", hint="use a checkpoint with its own head"
        )


def find_family(config: ConfigKeys) -> tuple[Family, str]:
    """By ``architectures[0]``, or by ``model_type`` where that key is absent; and its name.

    Raises ``ConfigError`` with the nearest known one.
    """
    architectures = config.values.get("architectures")
    if isinstance(architectures, list) and architectures:
        key, found = "architectures", str(architectures[0])
        known = {name: family for family in FAMILIES for name in family.architectures}
    else:
        key, found = "model_type", str(config.values.get("model_type"))
        known = {name: family for family in FAMILIES for name in family.model_types}
    if found in known:
        family = known[found]
        return family, found if key == "architectures" else family.architectures[0]
    if MIXED_EXPERTS.match(found):
        raise not_supported(
            f"{key} {found!r}, whose MLPs are mixtures of experts,",
            hint="use a dense model of its line, e.g. Qwen3.5-4B",
        )
    near = difflib.get_close_matches(found, known, n=1, cutoff=0.0)
    raise ConfigError(
        f"config.json: {key} {found!r} is not a known model; the nearest is {near[0]!r}",
        hint=f"known: {', '.join(sorted(known))}",
    )


def _refuse_other_arithmetic(config: ConfigKeys, family: Family) -> None:
    """Refuse config keys that change the computation in a way the graphs do not follow."""
    activation = config.text("hidden_act") or "silu"
    if activation != "silu":
        raise not_supported(f"hidden_act {activation!r}", hint="only silu MLPs are known")
    flag = config.flag("use_sliding_window")
    window = config.integer("sliding_window")
    if flag or (window and flag is None and not family.sliding_window_flag):
        raise not_supported(
            f"sliding window attention (sliding_window = {window})",
            hint="use a checkpoint with full attention in every layer",
        )
    kinds = None if family.hybrid else config.values.get("layer_types")
    for kind in kinds if isinstance(kinds, list) else [kinds] if kinds is not None else []:
        if kind != "full_attention":
            raise not_supported(
                f"layer_types entry {kind!r}", hint="only full_attention layers are known"
            )
    if config.flag("mlp_bias"):
        raise not_supported("mlp_bias = true", hint="use a model without bias in the MLP")


def _check_sources(checkpoint: Checkpoint, rules: list[WeightRule]) -> None:
    for rule in rules:
        for name, expected in zip(rule.sources, rule.source_shapes, strict=True):
            found = checkpoint.shape(name)
            if found != expected:
                raise ConfigError(
                    f"tensor {name!r} has shape {list(found)}, expected {list(expected)}",
                    hint="fetch the shard again; the other tensors and config.json agree on the "
                    "expected shape",
                )
            if not is_float(checkpoint.dtype(name)):
                raise not_supported(
                    f"tensor {name!r}, stored as {checkpoint.dtype(name)},",
                    hint="use the checkpoint in bf16, fp16 or fp32",
                )


def _check_leftovers(
    checkpoint: Checkpoint, rules: list[WeightRule], ignored: dict[str, str]
) -> None:
    used = [name for rule in rules for name in rule.sources]
    assert len(used) == len(set(used)), "a tensor is used twice"
    left = set(checkpoint.names()) - set(used) - set(ignored)
    for name in sorted(left):
        for pattern, reason in IGNORED.items():
            if pattern.fullmatch(name):
                ignored[name] = reason
                left.discard(name)
    if left:
        shown = ", ".join(map(repr, sorted(left)[:3]))
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        raise not_supported(
            f"tensors that this model should not have ({shown}{more})",
            hint="the checkpoint is another model than config.json says; leaving tensors out "
            "would change its output",
        )


def _spec(
    config: ConfigKeys,
    family: Family,
    geometry: Geometry,
    *,
    tied: bool,
    mtp: MtpPlan | None,
    rope: RopeSpec,
) -> ModelSpec:
    eps = config.number("rms_norm_eps")
    if eps is not None and not 0 <= eps < 1:
        raise ConfigError(
            f"config.json says rms_norm_eps = {eps:g}, expected 0 to 1",
            hint="restore the config.json that came with the checkpoint",
        )
    return ModelSpec(
        family=family.name,
        vocab_size=geometry.vocab_size,
        hidden_size=geometry.hidden_size,
        num_layers=geometry.num_layers,
        num_heads=geometry.num_heads,
        num_kv_heads=geometry.num_kv_heads,
        head_dim=geometry.head_dim,
        intermediate_size=geometry.intermediate_size,
        rms_norm_eps=family.rms_norm_eps if eps is None else eps,
        qkv_bias=geometry.qkv_bias,
        qk_norm=geometry.qk_norm,
        sandwich_norm=family.sandwich_norm,
        attention_gate=geometry.attention_gate,
        delta=geometry.delta,
        tied_head=tied,
        rope=rope,
        mtp=mtp.spec if mtp else None,
    )
