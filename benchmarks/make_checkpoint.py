"""A random checkpoint in the Qwen3 layout, with or without an MTP head.

    python -m benchmarks.make_checkpoint out/random-125m --mtp

Speed depends on shapes, not on what a model knows. Equal arguments give equal bytes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

DType = Literal["bf16", "fp32"]
DTYPE_NAMES: dict[DType, str] = {"bf16": "bfloat16", "fp32": "float32"}
END_TOKEN = "<|endoftext|>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3Geometry:
    """Sizes of the model; the defaults are 125 M parameters with an untied LM head."""

    hidden: int = 768
    layers: int = 12
    heads: int = 12
    kv_heads: int = 4
    head_dim: int = 64
    ffn: int = 2048
    vocab: int = 32_000
    context: int = 131_072

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is no multiple of kv_heads {self.kv_heads}")
        if self.vocab < 257:
            raise ValueError(f"vocab {self.vocab} is too small for 256 bytes and an end token")


def write_checkpoint(
    folder: Path,
    geometry: Qwen3Geometry,
    *,
    mtp: bool = False,
    dtype: DType = "bf16",
    seed: int = 0,
) -> Path:
    """``folder`` with weights, config, generation config and tokenizer.

    The backbone's tensors are the same with and without ``mtp``, which adds ``mtp.*``.
    """
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: tensor.to(getattr(torch, DTYPE_NAMES[dtype]))
        for name, tensor in random_tensors(geometry, generator, mtp=mtp)
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    end_id = write_tokenizer(folder, geometry)
    config = qwen3_config(geometry, end_id, mtp=mtp, dtype=dtype)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"do_sample": False, "eos_token_id": end_id})
    return folder


def qwen3_config(
    geometry: Qwen3Geometry, end_id: int, *, mtp: bool, dtype: DType
) -> dict[str, Any]:
    """``config.json`` with the keys of transformers' Qwen3, and the MTP key of Qwen3.5."""
    config: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": DTYPE_NAMES[dtype],
        "eos_token_id": end_id,
        "head_dim": geometry.head_dim,
        "hidden_act": "silu",
        "hidden_size": geometry.hidden,
        "initializer_range": 0.02,
        "intermediate_size": geometry.ffn,
        "max_position_embeddings": geometry.context,
        "max_window_layers": geometry.layers,
        "model_type": "qwen3",
        "num_attention_heads": geometry.heads,
        "num_hidden_layers": geometry.layers,
        "num_key_value_heads": geometry.kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1_000_000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": geometry.vocab,
    }
    if mtp:
        config["mtp_num_hidden_layers"] = 1
    return config


def random_tensors(
    geometry: Qwen3Geometry, generator: torch.Generator, *, mtp: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and fp32 tensors ``[out, in]``, scaled so that logits have about unit variance."""
    hidden, vocab = geometry.hidden, geometry.vocab
    yield "model.embed_tokens.weight", _normal(generator, vocab, hidden, std=1.0)
    for index in range(geometry.layers):
        yield from _decoder_layer(geometry, generator, f"model.layers.{index}.")
    yield "model.norm.weight", _norm(generator, hidden)
    yield "lm_head.weight", _normal(generator, vocab, hidden)
    if mtp:
        for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
            yield f"mtp.{name}.weight", _norm(generator, hidden)
        yield "mtp.fc.weight", _normal(generator, hidden, 2 * hidden)
        yield from _decoder_layer(geometry, generator, "mtp.layers.0.")


def _decoder_layer(
    geometry: Qwen3Geometry, generator: torch.Generator, prefix: str
) -> Iterator[tuple[str, torch.Tensor]]:
    hidden, ffn = geometry.hidden, geometry.ffn
    queries = geometry.heads * geometry.head_dim
    keys = geometry.kv_heads * geometry.head_dim
    matrices = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (ffn, hidden),
        "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn),
    }
    norms = {
        "input_layernorm": hidden,
        "post_attention_layernorm": hidden,
        "self_attn.q_norm": geometry.head_dim,
        "self_attn.k_norm": geometry.head_dim,
    }
    for name, (rows, columns) in matrices.items():
        yield f"{prefix}{name}.weight", _normal(generator, rows, columns)
    for name, size in norms.items():
        yield f"{prefix}{name}.weight", _norm(generator, size)


def _normal(
    generator: torch.Generator, rows: int, columns: int, *, std: float | None = None
) -> torch.Tensor:
    import torch

    scale = columns**-0.5 if std is None else std
    return torch.randn(rows, columns, generator=generator) * scale


def _norm(generator: torch.Generator, size: int) -> torch.Tensor:
    import torch

    # Not ones: an optimiser could fold a multiplication by one away.
    return 1 + 0.1 * torch.randn(size, generator=generator)


def write_tokenizer(folder: Path, geometry: Qwen3Geometry) -> int:
    """A byte-level BPE of at most ``vocab`` tokens, built without training; the end token's id.

    256 bytes, then pairs and triples of ASCII letters, digits and the space.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocab = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = []
    for left, right in _merge_candidates():
        if len(vocab) + 1 == geometry.vocab:
            break
        vocab[left + right] = len(vocab)
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_TOKEN, special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_TOKEN}
    _write_json(folder / "tokenizer_config.json", settings)
    end_id = tokenizer.token_to_id(END_TOKEN)
    assert end_id is not None
    return int(end_id)


def _merge_candidates() -> Iterator[tuple[str, str]]:
    letters = "abcdefghijklmnopqrstuvwxyz"
    # "Ġ" is how a byte-level vocabulary spells the space.
    symbols = letters + letters.upper() + "0123456789Ġ"
    pairs = [(a, b) for a in symbols for b in symbols]
    yield from pairs
    for left, right in pairs:
        for third in letters:
            yield left + right, third


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Command line: every size is an option."""
    default = Qwen3Geometry()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mtp", action="store_true", help="add an MTP head (Qwen names)")
    parser.add_argument("--dtype", choices=list(DTYPE_NAMES), default="bf16")
    parser.add_argument("--seed", type=int, default=0)
    sizes = list(Qwen3Geometry.__slots__)
    for size in sizes:
        option = "--" + size.replace("_", "-")
        parser.add_argument(option, type=int, default=getattr(default, size))
    args = parser.parse_args()
    geometry = Qwen3Geometry(**{size: getattr(args, size) for size in sizes})
    write_checkpoint(args.folder, geometry, mtp=args.mtp, dtype=args.dtype, seed=args.seed)
    print(args.folder)


if __name__ == "__main__":
    main()
