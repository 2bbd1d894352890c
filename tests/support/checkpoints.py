"""Tiny random checkpoints in the layout of the hub, written in code and never downloaded.

``write_checkpoint(folder, "qwen3", mtp="mimo")`` gives a folder that ``selfdraft export`` reads.
Every tensor is drawn from ``seed``, so equal arguments give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Family = Literal["mimo", "qwen2", "qwen3", "llama", "minicpm", "glm4", "glm_ocr"]
MtpNames = Literal["mimo", "qwen", "deepseek"]
DType = Literal["F32", "F16", "BF16", "F64"]
Tensors = dict[str, NDArray[np.float32]]

ARCHITECTURES = {
    "mimo": "MiMoForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "minicpm": "MiniCPMForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "glm_ocr": "GlmOcrForConditionalGeneration",
}
FAMILY_KEYS: dict[str, dict[str, Any]] = {
    "minicpm": {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16},
    "glm4": {"partial_rotary_factor": 0.5, "attention_bias": True},
    "glm_ocr": {"partial_rotary_factor": 0.5},
}
"""Keys of a family beside the common ones."""
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
THINK_TOKENS = ("<think>", "</think>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
README = "---\nlicense: apache-2.0\nlanguage: en\n---\n# A random model for tests\n"


def write_checkpoint(
    folder: Path,
    family: Family = "mimo",
    *,
    mtp: MtpNames | None = "mimo",
    seed: int = 0,
    dtype: DType = "F32",
    shards: int = 1,
    tied: bool = False,
    vocab: int = 288,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    intermediate: int = 96,
    context: int = 512,
    config: Mapping[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    extra: Mapping[str, NDArray[Any]] | None = None,
    tokenizer: bool = True,
    prefix: str = "",
) -> Path:
    """A checkpoint folder; ``config`` overrides keys (value ``...`` removes one).

    ``prefix`` (``model.language_model.`` or ``language_model.``) makes it the language model of a
    multimodal checkpoint, its keys in ``text_config``. ``drop`` removes tensors and ``extra`` adds or replaces them (torch layout ``[out, in]``).
    ``vocab`` must be at least 261 with a tokenizer (256 bytes and five added tokens).
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = checkpoint_config(
        family,
        mtp=mtp,
        tied=tied,
        vocab=vocab,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        context=context,
    )
    tensors = random_tensors(settings, family, mtp=mtp, seed=seed)
    for key, value in (config or {}).items():
        if value is ...:
            settings.pop(key, None)
        else:
            settings[key] = value
    for name in drop:
        del tensors[name]
    if prefix:
        settings, tensors = nested(settings, tensors, prefix)
    tensors.update(extra or {})
    (folder / "config.json").write_text(json.dumps(settings, indent=1))
    write_shards(folder, tensors, dtype=dtype, shards=shards)
    (folder / "README.md").write_text(README)
    if tokenizer:
        write_tokenizer(folder)
    return folder


def checkpoint_config(
    family: Family,
    *,
    mtp: MtpNames | None,
    tied: bool,
    vocab: int,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    intermediate: int,
    context: int,
) -> dict[str, Any]:
    """``config.json`` as such a checkpoint would have it."""
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": intermediate,
        "max_position_embeddings": context,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "eos_token_id": 256,
    }
    if mtp == "mimo":
        config["num_nextn_predict_layers"] = 1
    elif mtp == "qwen":
        config["mtp_num_hidden_layers"] = 1
    elif mtp == "deepseek":
        config["num_nextn_predict_layers"] = 1
    return config | FAMILY_KEYS.get(family, {})


def nested(
    config: Mapping[str, Any], tensors: Tensors, prefix: str
) -> tuple[dict[str, Any], Tensors]:
    """Config and tensors as a multimodal checkpoint has them; heads stay at the top."""
    plain = {"model.language_model.": "model.", "language_model.": ""}[prefix]
    outer = {"architectures": config["architectures"], "model_type": config["model_type"]}
    renamed = {
        prefix + name.removeprefix(plain) if name.startswith(plain or "model.") else name: array
        for name, array in tensors.items()
    }
    return outer | {"text_config": {**config, "architectures": None}, "vision_config": {}}, renamed


def random_tensors(
    config: Mapping[str, Any], family: Family, *, mtp: MtpNames | None, seed: int = 0
) -> Tensors:
    """Every tensor of the checkpoint, torch layout; activations stay near unit size."""
    random = np.random.default_rng(seed)
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    tensors: Tensors = {
        "model.embed_tokens.weight": _matrix(random, vocab, hidden, scale=1.0),
        "model.norm.weight": _norm(random, hidden),
    }
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = _matrix(random, vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        tensors.update(_decoder_layer(random, config, family, f"model.layers.{i}."))
    if mtp is not None:
        tensors.update(_mtp_head(random, config, family, mtp))
    return tensors


def write_shards(
    folder: Path, tensors: Mapping[str, NDArray[Any]], *, dtype: DType, shards: int
) -> None:
    """``model.safetensors``, or ``shards`` files and their index."""
    encoded = {name: encode(array, dtype) for name, array in tensors.items()}
    if shards == 1:
        write_safetensors(folder / "model.safetensors", encoded)
        return
    weight_map: dict[str, str] = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: encoded[name] for name in list(encoded)[i::shards]}
        write_safetensors(folder / file, part)
        weight_map.update(dict.fromkeys(part, file))
    total = sum(len(data) for _, _, data in encoded.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def encode(array: NDArray[Any], dtype: DType) -> tuple[str, tuple[int, ...], bytes]:
    """Dtype name, shape and little-endian bytes; integer arrays keep their own type."""
    if not np.issubdtype(array.dtype, np.floating):
        kind = {"int64": "I64", "int32": "I32", "int8": "I8", "uint8": "U8"}[array.dtype.name]
        return kind, array.shape, array.tobytes()
    if dtype == "BF16":
        bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to nearest, ties to even
        return dtype, array.shape, rounded.astype(np.uint16).tobytes()
    numpy_type = {"F32": np.float32, "F16": np.float16, "F64": np.float64}[dtype]
    return dtype, array.shape, array.astype(numpy_type).tobytes()


def write_safetensors(
    path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]
) -> None:
    """A safetensors file from raw bytes; knows nothing of the exporter that reads it."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (kind, shape, data) in tensors.items():
        span = [offset, offset + len(data)]
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": span}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, data in tensors.values():
            file.write(data)


def write_tokenizer(folder: Path) -> None:
    """Byte-level tokenizer of 261 tokens: bytes 0..255, three specials, two think tags."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in THINK_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "eos_token": SPECIAL_TOKENS[2],
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _decoder_layer(
    random: np.random.Generator, config: Mapping[str, Any], family: Family, prefix: str
) -> Tensors:
    hidden, dim = config["hidden_size"], config["head_dim"]
    queries = config["num_attention_heads"] * dim
    keys = config["num_key_value_heads"] * dim
    wide = config["intermediate_size"]
    layer = {
        "input_layernorm.weight": _norm(random, hidden),
        "self_attn.q_proj.weight": _matrix(random, queries, hidden),
        "self_attn.k_proj.weight": _matrix(random, keys, hidden),
        "self_attn.v_proj.weight": _matrix(random, keys, hidden),
        "self_attn.o_proj.weight": _matrix(random, hidden, queries),
        "post_attention_layernorm.weight": _norm(random, hidden),
        "mlp.gate_proj.weight": _matrix(random, wide, hidden),
        "mlp.up_proj.weight": _matrix(random, wide, hidden),
        "mlp.down_proj.weight": _matrix(random, hidden, wide),
    }
    if family in ("glm4", "glm_ocr"):
        parts = [layer.pop(f"mlp.{name}_proj.weight") for name in ("gate", "up")]
        layer["mlp.gate_up_proj.weight"] = np.concatenate(parts)
        layer["post_self_attn_layernorm.weight"] = _norm(random, hidden)
        layer["post_mlp_layernorm.weight"] = _norm(random, hidden)
    if family in ("mimo", "qwen2", "glm4"):
        for name, size in (("q", queries), ("k", keys), ("v", keys)):
            layer[f"self_attn.{name}_proj.bias"] = _vector(random, size, scale=0.3)
    if family == "qwen3":
        layer["self_attn.q_norm.weight"] = _norm(random, dim)
        layer["self_attn.k_norm.weight"] = _norm(random, dim)
    return {prefix + name: array for name, array in layer.items()}


def _mtp_head(
    random: np.random.Generator, config: Mapping[str, Any], family: Family, names: MtpNames
) -> Tensors:
    hidden = config["hidden_size"]
    head = {
        "embedding_norm": _norm(random, hidden),
        "hidden_norm": _norm(random, hidden),
        "proj": _matrix(random, hidden, 2 * hidden),
        "final_norm": _norm(random, hidden),
    }
    if names == "mimo":
        prefix = block = "model.mtp_layers.0."
        renamed = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
    elif names == "deepseek":
        prefix = block = f"model.layers.{config['num_hidden_layers']}."
        renamed = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
    else:
        prefix, block = "mtp.", "mtp.layers.0."
        renamed = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
    tensors = {
        f"{prefix}{name}.weight": array for name, array in zip(renamed, head.values(), strict=True)
    }
    tensors.update(_decoder_layer(random, config, family, block))
    return tensors


def _matrix(
    random: np.random.Generator, rows: int, columns: int, *, scale: float | None = None
) -> NDArray[np.float32]:
    size = columns**-0.5 if scale is None else scale
    return (random.standard_normal((rows, columns)) * size).astype(np.float32)


def _vector(random: np.random.Generator, size: int, *, scale: float) -> NDArray[np.float32]:
    return (random.standard_normal(size) * scale).astype(np.float32)


def _norm(random: np.random.Generator, size: int) -> NDArray[np.float32]:
    return (1 + 0.1 * random.standard_normal(size)).astype(np.float32)
