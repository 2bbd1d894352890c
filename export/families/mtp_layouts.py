"""Namings of an MTP head, told apart by tensors, and the wiring that each implies.

MiMo joins ``[hidden ; embedding]`` and its reference engines feed the hidden state before the
final norm; the Qwen naming joins ``[embedding ; hidden]`` and takes it after the norm. Both feed
the head's own normed output to the next draft of a chain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from selfdraft.errors import ConfigError
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.config import ConfigKeys, not_supported
from selfdraft.export.families.base import Family, MtpNaming, WeightRule
from selfdraft.export.families.decoder import layer_rules, matrix_rule, vector_rule
from selfdraft.export.families.geometry import Geometry
from selfdraft.manifest import Concat, MtpSpec, Tap

COUNT_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
NO_HEAD_NOTE = "no MTP head: speculation is off"


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpLayout:
    """Tensor names of one naming, and its wiring."""

    head: str
    """Prefix that tells the naming."""
    layers: re.Pattern[str]
    """Finds the index of an MTP layer in a tensor name."""
    block: str
    """Prefix of the head's decoder layer."""
    embedding_norm: str
    hidden_norm: str
    proj: str
    final_norm: str
    concat: Concat
    tap: Tap


LAYOUTS: dict[MtpNaming, MtpLayout] = {
    "mimo": MtpLayout(
        head="model.mtp_layers.",
        layers=re.compile(r"model\.mtp_layers\.(\d+)\."),
        block="model.mtp_layers.0.",
        embedding_norm="model.mtp_layers.0.token_layernorm.weight",
        hidden_norm="model.mtp_layers.0.hidden_layernorm.weight",
        proj="model.mtp_layers.0.input_proj.weight",
        final_norm="model.mtp_layers.0.final_layernorm.weight",
        concat="hidden_first",
        tap="pre_norm",
    ),
    "qwen": MtpLayout(
        head="mtp.",
        layers=re.compile(r"mtp\.layers\.(\d+)\."),
        block="mtp.layers.0.",
        embedding_norm="mtp.pre_fc_norm_embedding.weight",
        hidden_norm="mtp.pre_fc_norm_hidden.weight",
        proj="mtp.fc.weight",
        final_norm="mtp.norm.weight",
        concat="embedding_first",
        tap="post_norm",
    ),
}


def read_mtp(
    checkpoint: Checkpoint,
    config: ConfigKeys,
    family: Family,
    geometry: Geometry,
    notes: list[str],
) -> tuple[MtpSpec | None, list[WeightRule]]:
    """Wiring and rules of the head, or ``(None, [])`` and a note where there is none.

    Tensors decide. Raises ``ConfigError`` for more than one head, for two namings at once, and
    for a head that the config promises but whose tensors are missing.
    """
    counts = {key: config.integer(key) for key in COUNT_KEYS}
    promised = {key: count for key, count in counts.items() if count}
    for key, count in promised.items():
        if count > 1:
            raise _several(f"{key} = {count}")
    naming = _find_naming(checkpoint)
    if naming is None:
        if promised:
            key, count = next(iter(promised.items()))
            raise ConfigError(
                f"config.json says {key} = {count}, but tensor "
                f"{LAYOUTS[family.mtp_naming].embedding_norm!r} is missing",
                hint="fetch the checkpoint with its MTP tensors (many converters drop them), or "
                f"set {key} to 0 to export without speculation",
            )
        notes.append(NO_HEAD_NOTE)
        return None, []
    if not promised:
        notes.append(f"MTP tensors {LAYOUTS[naming].head}* are used, though no config key asks")
    layout = LAYOUTS[naming]
    _refuse_second_layer(checkpoint, layout)
    spec = MtpSpec(concat=layout.concat, tap=layout.tap, recycle="post_norm")
    return spec, _rules(layout, geometry)


def _find_naming(checkpoint: Checkpoint) -> MtpNaming | None:
    found: dict[MtpNaming, str] = {}
    for name in checkpoint.names():
        for naming, layout in LAYOUTS.items():
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
        if match and int(match[1]) > 0:
            raise _several(f"tensor {name!r}")


def _several(found: str) -> ConfigError:
    return not_supported(
        f"more than one MTP layer ({found})",
        hint="use a checkpoint with a single MTP layer; drafts of a chain reuse it",
    )


def _rules(layout: MtpLayout, geometry: Geometry) -> list[WeightRule]:
    hidden = geometry.hidden_size
    return [
        vector_rule("mtp.embedding_norm", layout.embedding_norm, hidden),
        vector_rule("mtp.hidden_norm", layout.hidden_norm, hidden),
        matrix_rule("mtp.proj.weight", {layout.proj: (hidden, 2 * hidden)}),
        *layer_rules("mtp.layer.", layout.block, geometry),
        vector_rule("mtp.final_norm", layout.final_norm, hidden),
    ]
