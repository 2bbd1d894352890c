"""An untrained MTP head for a dense checkpoint, in its family's own naming.

It starts as the backbone's last layer, reading the hidden state plus the next token's embedding, with
the backbone's final norm behind it: close enough to the goal that training is short.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from selfdraft.export.align.write_back import TYPES, source_values
from selfdraft.export.checkpoint import (
    CONFIG_NAME,
    INDEX_NAME,
    WEIGHTS_NAME,
    Checkpoint,
    read_json,
)
from selfdraft.export.config import ConfigKeys
from selfdraft.export.families import find_family, head_plan
from selfdraft.export.families.base import MtpNaming, WeightRule
from selfdraft.export.families.geometry import EMBEDDING
from selfdraft.export.language_part import TEXT_CONFIG
from selfdraft.export.safetensors_file import read_header
from selfdraft.export.weight_reader import CheckpointReader
from selfdraft.manifest import ModelSpec

SHARD = "model-mtp.safetensors"
CONFIG_KEYS: dict[MtpNaming, str] = {
    "mimo": "num_nextn_predict_layers",
    "qwen": "mtp_num_hidden_layers",
    "deepseek": "num_nextn_predict_layers",
}


def add_head(checkpoint: Checkpoint, spec: ModelSpec, reader: CheckpointReader) -> None:
    """Add tensors, index and config key of a head to the folder of ``checkpoint``.

    Raises ``ConfigError`` where the model's scalings leave no place for a head.
    """
    family, _ = find_family(ConfigKeys(checkpoint.config))
    rules = {rule.target: rule for rule in head_plan(checkpoint).rules}
    dtype = TYPES.get(checkpoint.dtype(EMBEDDING), torch.bfloat16)
    stored = {
        _outer_name(checkpoint, name): value.to(dtype).contiguous()
        for target, start in _start_values(spec, reader, rules).items()
        for name, value in source_values(rules[target], start).items()
    }
    save: Any = save_file  # untyped
    save(stored, checkpoint.path / SHARD, metadata={"format": "pt"})
    _write_index(checkpoint.path, list(stored))
    _write_config(checkpoint.path / CONFIG_NAME, CONFIG_KEYS[family.mtp_naming])


def _start_values(
    spec: ModelSpec, reader: CheckpointReader, rules: dict[str, WeightRule]
) -> dict[str, Tensor]:
    """By bundle name ``[in, out]``."""
    last = f"backbone.layers.{spec.num_layers - 1}."
    values = {
        target: torch.from_numpy(reader.tensor(last + target.removeprefix("mtp.layer.")))
        for target in rules
        if target.startswith("mtp.layer.")
    }
    ones = torch.ones(spec.hidden_size)
    same = torch.eye(spec.hidden_size)
    return values | {
        "mtp.hidden_norm": ones,
        "mtp.embedding_norm": ones,
        "mtp.proj.weight": torch.cat([same, same]) * 0.7,
        "mtp.final_norm": torch.from_numpy(reader.tensor("backbone.norm")),
    }


def _outer_name(checkpoint: Checkpoint, name: str) -> str:
    """``name`` with the prefix that this checkpoint puts before its language model."""
    embedding = checkpoint.tensors[EMBEDDING][1].name
    # language_model.model.embed_tokens.weight, or no prefix; but model.language_model.embed_tokens
    # ends with the same letters, in the middle of a word.
    if f".{embedding}".endswith(f".{EMBEDDING}"):
        return embedding.removesuffix(EMBEDDING) + name
    inner = embedding.removesuffix("embed_tokens.weight")  # model.language_model.
    return inner + name.removeprefix("model.") if name.startswith("model.") else name


def _write_index(folder: Path, added: list[str]) -> None:
    path = folder / INDEX_NAME
    index: dict[str, Any] = read_json(path) if path.is_file() else {"metadata": {}}
    weight_map = index.get("weight_map") or dict.fromkeys(
        read_header(folder / WEIGHTS_NAME), WEIGHTS_NAME
    )
    index["weight_map"] = {**weight_map, **dict.fromkeys(added, SHARD)}
    path.write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def _write_config(path: Path, key: str) -> None:
    config = read_json(path)
    inner = config.get(TEXT_CONFIG)
    (inner if isinstance(inner, dict) else config)[key] = 1
    path.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
