"""Writes and reads checkpoint folders."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from demo.config import ModelConfig
from demo.model import DemoModel
from demo.tokenizer import TEMPLATE_PATH, tokenizer_config

WEIGHTS = "model.safetensors"


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def save_checkpoint(folder: Path, model: DemoModel, tokenizer: Tokenizer) -> str:
    """Writes weights (bfloat16), config, tokenizer and template; returns the SHA-256 of the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)
    _write_json(folder / "config.json", model.config.hf_config())
    _write_json(folder / "generation_config.json",
                {"bos_token_id": 0, "eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": False})  # fmt: skip
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json", tokenizer_config(model.config.max_position_embeddings)
    )
    (folder / "chat_template.jinja").write_text(
        TEMPLATE_PATH.read_text(encoding="utf-8"), encoding="utf-8"
    )
    return hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()


def load_checkpoint(folder: Path) -> tuple[DemoModel, Tokenizer]:
    """Model in float32 and tokenizer of a checkpoint folder."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    sizes = {name: config[name] for name in ModelConfig.__dataclass_fields__}
    model = DemoModel(ModelConfig(**sizes))
    model.load_state_dict(
        {name: tensor.float() for name, tensor in load_file(folder / WEIGHTS).items()}
    )
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))
