"""The random checkpoint has the shapes and files that its config promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from benchmarks.make_checkpoint import Qwen3Geometry, write_checkpoint

TINY = Qwen3Geometry(
    hidden=32, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=48, vocab=300, context=256
)


def test_every_tensor_has_the_shape_of_its_geometry(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY, mtp=True, dtype="fp32")
    tensors = load_file(tmp_path / "model.safetensors")
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert shapes["model.embed_tokens.weight"] == shapes["lm_head.weight"] == (300, 32)
    assert shapes["mtp.fc.weight"] == (32, 64)
    for layer in ("model.layers.0", "model.layers.1", "mtp.layers.0"):
        assert shapes[f"{layer}.self_attn.q_proj.weight"] == (64, 32)
        assert shapes[f"{layer}.self_attn.k_proj.weight"] == (32, 32)
        assert shapes[f"{layer}.self_attn.o_proj.weight"] == (32, 64)
        assert shapes[f"{layer}.self_attn.q_norm.weight"] == (16,)
        assert shapes[f"{layer}.mlp.down_proj.weight"] == (32, 48)
    assert len(shapes) == 3 + 3 * 11 + 4


def test_default_geometry_has_125_million_parameters() -> None:
    size = Qwen3Geometry()
    attention = size.hidden * size.head_dim * (2 * size.heads + 2 * size.kv_heads)
    layer = attention + 3 * size.hidden * size.ffn
    total = size.layers * layer + 2 * size.vocab * size.hidden
    assert total == pytest.approx(125e6, rel=0.02)


def test_the_backbone_is_the_same_with_and_without_a_head(tmp_path: Path) -> None:
    plain = write_checkpoint(tmp_path / "plain", TINY, mtp=False)
    with_head = write_checkpoint(tmp_path / "mtp", TINY, mtp=True)
    tensors = load_file(plain / "model.safetensors")
    both = load_file(with_head / "model.safetensors")
    assert all(torch.equal(tensor, both[name]) for name, tensor in tensors.items())
    assert {name.split(".")[0] for name in set(both) - set(tensors)} == {"mtp"}
    configs = [json.loads((path / "config.json").read_text()) for path in (plain, with_head)]
    assert "mtp_num_hidden_layers" not in configs[0]
    assert configs[1]["mtp_num_hidden_layers"] == 1


def test_a_seed_fixes_every_byte(tmp_path: Path) -> None:
    files = [
        write_checkpoint(tmp_path / str(i), TINY, mtp=True, seed=seed) / "model.safetensors"
        for i, seed in enumerate((3, 3, 4))
    ]
    first, second, third = (file.read_bytes() for file in files)
    assert first == second
    assert first != third


def test_the_tokenizer_fits_the_vocabulary_and_returns_its_text(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "Ground control, 42 µm — naïve 東京"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.get_vocab_size() == 300
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["eos_token_id"] == tokenizer.token_to_id("<|endoftext|>") == 299


def test_a_geometry_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="heads 5 is no multiple of kv_heads 2"):
        Qwen3Geometry(heads=5, kv_heads=2)
