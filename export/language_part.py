"""The language model inside a checkpoint: names and config keys of a text model.

Multimodal checkpoints keep it below ``model.language_model.`` (or ``language_model.``) with its
config in ``text_config``; text-only conversions drop both. Either way the rest of the exporter sees
``model.*``, ``lm_head.*``, ``mtp.*`` and flat config keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfdraft.errors import ConfigError
from selfdraft.export.safetensors_file import StoredTensor

Tensors = Mapping[str, tuple[Path, StoredTensor]]

PREFIXES = {"model.language_model.": "model.", "language_model.": ""}
"""Prefix of the language model, and what a text model has in its place."""
TOWERS = ("model.visual.", "visual.", "model.vision_tower.", "vision_tower.", "audio_tower.")
TEXT_CONFIG = "text_config"
TIED = "tie_word_embeddings"
LM_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguagePart:
    """Config keys and tensors of the language model; ``left_out`` tells of other towers."""

    config: Mapping[str, Any]
    tensors: Tensors
    left_out: Mapping[str, str]


def language_part(config: Mapping[str, Any], tensors: Tensors) -> LanguagePart:
    """The language model of a checkpoint; a text model is returned as it is.

    Raises ``ConfigError`` where a tensor is there with and without the prefix.
    """
    renamed: dict[str, tuple[Path, StoredTensor]] = {}
    towers: dict[str, list[StoredTensor]] = {}
    for name, place in tensors.items():
        tower = next((prefix for prefix in TOWERS if name.startswith(prefix)), None)
        if tower is not None:
            towers.setdefault(tower, []).append(place[1])
            continue
        plain = _plain_name(name)
        if plain in renamed:
            raise ConfigError(
                f"tensor {plain!r} is there with and without the prefix of a language model",
                hint="remove one of the two copies",
            )
        renamed[plain] = place
    left_out = {f"{prefix}*": _tower_text(found) for prefix, found in towers.items()}
    return LanguagePart(config=_flat(config, renamed), tensors=renamed, left_out=left_out)


def _plain_name(name: str) -> str:
    for prefix, short in PREFIXES.items():
        if name.startswith(prefix):
            return short + name.removeprefix(prefix)
    return name


def _tower_text(tensors: list[StoredTensor]) -> str:
    size = sum(tensor.length for tensor in tensors)
    return (
        f"a tower of {len(tensors)} tensors ({size / 2**20:.1f} MiB) for images or sound is left "
        "out: the bundle is a text model"
    )


def _flat(config: Mapping[str, Any], tensors: Tensors) -> dict[str, Any]:
    """Keys of ``text_config`` before those around it; both may say whether the head is tied."""
    inner = config.get(TEXT_CONFIG)
    if not isinstance(inner, Mapping):
        return dict(config)
    flat = {**config, **inner, "architectures": config.get("architectures")}
    del flat[TEXT_CONFIG]
    if isinstance(config.get("model_type"), str) and not config.get("architectures"):
        flat["model_type"] = config["model_type"]
    said = {keys[TIED] for keys in (config, inner) if keys.get(TIED) is not None}
    if len(said) > 1:  # engines disagree on which of the two counts; the tensors do not
        flat[TIED] = LM_HEAD not in tensors
    return flat
