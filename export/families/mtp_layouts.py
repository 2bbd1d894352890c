"""Namings of an MTP head, told apart by tensors, and the wiring that each implies.

MiMo joins ``[hidden ; embedding]``; its reference engines disagree on the tap, and the one before
the final norm is the default. The Qwen and DeepSeek namings join ``[embedding ; hidden]`` and take
it after the norm. All feed the head's own normed output to the next draft of a chain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from selfdraft.errors import ConfigError
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.config import ConfigKeys, not_supported
from selfdraft.export.families.backbone import LM_HEAD
from selfdraft.export.families.base import Family, LayerStyle, MtpNaming, WeightRule
from selfdraft.export.families.decoder import layer_rules, matrix_rule, norm_rule
from selfdraft.export.families.geometry import EMBEDDING, MTP_LAYER, Geometry
from selfdraft.manifest import Concat, MtpSpec, Tap

COUNT_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
NO_HEAD_NOTE = "no MTP head: speculation is off"


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpLayout:
    """Tensor names of one naming, and its wiring."""

    head: str
    """Prefix of every tensor of the head."""
    layers: re.Pattern[str]
    """Finds the index of an MTP layer in a tensor name."""
    first: int
    """Index of the first MTP layer."""
    block: str
    """Prefix of the head's decoder layer."""
    embedding_norm: str
    hidden_norm: str
    proj: str
    final_norm: str
    concat: Concat
    tap: Tap
    copies: dict[str, str]
    """Tensors that repeat one of the backbone, with its name."""
    disputed_tap: bool = False
    """Public engines disagree: worth a measurement."""


MIMO = MtpLayout(
    head="model.mtp_layers.",
    layers=re.compile(r"model\.mtp_layers\.(\d+)\."),
    first=0,
    block="model.mtp_layers.0.",
    embedding_norm="model.mtp_layers.0.token_layernorm.weight",
    hidden_norm="model.mtp_layers.0.hidden_layernorm.weight",
    proj="model.mtp_layers.0.input_proj.weight",
    final_norm="model.mtp_layers.0.final_layernorm.weight",
    concat="hidden_first",
    tap="pre_norm",
    copies={},
    disputed_tap=True,
)
QWEN = MtpLayout(
    head="mtp.",
    layers=re.compile(r"mtp\.layers\.(\d+)\."),
    first=0,
    block="mtp.layers.0.",
    embedding_norm="mtp.pre_fc_norm_embedding.weight",
    hidden_norm="mtp.pre_fc_norm_hidden.weight",
    proj="mtp.fc.weight",
    final_norm="mtp.norm.weight",
    concat="embedding_first",
    tap="post_norm",
    copies={},
)


def deepseek_layout(num_layers: int) -> MtpLayout:
    """The head behind ``num_layers`` layers, with the copies that published checkpoints carry."""
    prefix = f"model.layers.{num_layers}."
    return MtpLayout(
        head=prefix,
        layers=MTP_LAYER,
        first=num_layers,
        block=prefix,
        embedding_norm=prefix + "enorm.weight",
        hidden_norm=prefix + "hnorm.weight",
        proj=prefix + "eh_proj.weight",
        final_norm=prefix + "shared_head.norm.weight",
        concat="embedding_first",
        tap="post_norm",
        copies={
            prefix + "embed_tokens.weight": EMBEDDING,
            prefix + "shared_head.head.weight": LM_HEAD,
        },
    )


def layouts(num_layers: int) -> dict[MtpNaming, MtpLayout]:
    """Every naming, for a backbone of ``num_layers`` layers."""
    return {"mimo": MIMO, "qwen": QWEN, "deepseek": deepseek_layout(num_layers)}


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpPlan:
    """The head of a checkpoint: wiring, rules, and tensors that only repeat others."""

    spec: MtpSpec
    rules: tuple[WeightRule, ...]
    copies: dict[str, str]
    """Tensor names with the reason to leave them out."""
    disputed_tap: bool


def read_mtp(
    checkpoint: Checkpoint,
    config: ConfigKeys,
    family: Family,
    geometry: Geometry,
    style: LayerStyle,
    notes: list[str],
) -> MtpPlan | None:
    """The head, or None and a note where there is none.

    Tensors decide. Raises ``ConfigError`` for more than one head, for two namings at once, and
    for a head that the config promises but whose tensors are missing.
    """
    counts = {key: config.integer(key) for key in COUNT_KEYS}
    promised = {key: count for key, count in counts.items() if count}
    for key, count in promised.items():
        if count > 1:
            raise _several(f"{key} = {count}")
    known = layouts(geometry.num_layers)
    naming = _find_naming(checkpoint, known)
    if naming is None:
        if promised:
            key, count = next(iter(promised.items()))
            raise ConfigError(
                f"config.json says {key} = {count}, but tensor "
                f"{known[family.mtp_naming].embedding_norm!r} is missing",
                hint="fetch the checkpoint with its MTP tensors (many converters drop them), or "
                f"set {key} to 0 to export without speculation",
            )
        notes.append(NO_HEAD_NOTE)
        return None
    layout = known[naming]
    if not promised:
        notes.append(f"MTP tensors {layout.head}* are used, though no config key asks")
    _refuse_second_layer(checkpoint, layout)
    plan = new_mtp(naming, geometry, style)
    return replace(plan, copies=_checked_copies(checkpoint, layout))


def new_mtp(naming: MtpNaming, geometry: Geometry, style: LayerStyle) -> MtpPlan:
    """A head with this naming, whether its tensors exist or not."""
    layout = layouts(geometry.num_layers)[naming]
    spec = MtpSpec(
        concat=layout.concat,
        tap=layout.tap,
        recycle="post_norm",
        norm="offset" if style.norm_offset else "plain",
    )
    return MtpPlan(
        spec=spec,
        rules=tuple(_rules(layout, geometry, style)),
        copies={},
        disputed_tap=layout.disputed_tap,
    )


def _find_naming(checkpoint: Checkpoint, known: dict[MtpNaming, MtpLayout]) -> MtpNaming | None:
    found: dict[MtpNaming, str] = {}
    for name in checkpoint.names():
        for naming, layout in known.items():
            if name.startswith(layout.head):
                found.setdefault(naming, name)
    if len(found) > 1:
        raise not_supported(
            f"an MTP head in two namings at once ({', '.join(map(repr, found.values()))})",
            hint="remove the tensors of one of them",
        )
    return next(iter(found), None)


def _refuse_second_layer(checkpoint: Checkpoint, layout: MtpLayout) -> None:
    for name in checkpoint.names():
        match = layout.layers.match(name)
        if match and int(match[1]) != layout.first:
            raise _several(f"tensor {name!r}")


def _several(found: str) -> ConfigError:
    return not_supported(
        f"more than one MTP layer ({found})",
        hint="use a checkpoint with a single MTP layer; drafts of a chain reuse it",
    )


def _checked_copies(checkpoint: Checkpoint, layout: MtpLayout) -> dict[str, str]:
    """Tensors to leave out because they repeat the backbone's; another content is refused."""
    copies = {}
    for name, original in layout.copies.items():
        if name not in checkpoint.tensors:
            continue
        source = original if original in checkpoint.tensors else EMBEDDING
        if not checkpoint.equal(name, source):
            raise not_supported(
                f"an MTP head with its own {name!r} (it differs from {source!r})",
                hint="use a checkpoint whose MTP head shares embedding and LM head",
            )
        copies[name] = f"a copy of {source}"
    return copies


def _rules(layout: MtpLayout, geometry: Geometry, style: LayerStyle) -> list[WeightRule]:
    hidden = geometry.hidden_size
    return [
        norm_rule("mtp.embedding_norm", layout.embedding_norm, hidden, style),
        norm_rule("mtp.hidden_norm", layout.hidden_norm, hidden, style),
        matrix_rule("mtp.proj.weight", {layout.proj: (hidden, 2 * hidden)}),
        *layer_rules("mtp.layer.", layout.block, geometry, style),
        norm_rule("mtp.final_norm", layout.final_norm, hidden, style),
    ]
