"""Tiny Qwen3.5 checkpoints with random weights, in the layout that is published."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.checkpoints import Tensors, nested, write_shards, write_tokenizer

from selfdraft.manifest import MtpSpec
from selfdraft.recurrent import DeltaSpec

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 288,
    "hidden_size": 60,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "attn_output_gate": True,
    "tie_word_embeddings": False,
    "eos_token_id": 256,
    "full_attention_interval": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [1, 1, 0],
        "mrope_interleaved": True,
    },
}

FOR_BOARDS: dict[str, Any] = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "head_dim": 64,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 3,
    "rope_parameters": {**CONFIG["rope_parameters"], "mrope_section": [4, 2, 2]},
}
"""Changes of ``CONFIG``: heads that the kernels of a board serve, matrices that can be int4."""


def tiny_hybrid(tiny: Any, **limits: Any) -> Any:
    """A reference backend of ``tiny_model`` with two gated delta nets around one gated attention."""
    delta = DeltaSpec(
        layers=(0, 2), num_key_heads=1, num_value_heads=3, key_dim=6, value_dim=5, taps=4
    )
    mtp = MtpSpec(concat="embedding_first", tap="post_norm")
    changes = {"num_layers": 3, "delta": delta, "attention_gate": True, "qk_norm": True}
    return tiny.backend(tiny.model_spec(**changes, qkv_bias=False, mtp=mtp), **limits)


def right_now_and_then(loop: Any, expected: Callable[[int], Sequence[int]], seed: int = 0) -> None:
    """Let most drafts of ``loop`` be what a slot delivers next (``expected``), the others the head's."""
    drafting, random = loop._drafting, np.random.default_rng(seed)
    propose = drafting.propose

    def proposed(runs: Any, span: Any) -> dict[int, list[int]]:
        drafts: dict[int, list[int]] = propose(runs, span)
        for slot, chain in drafts.items():
            for link, token in enumerate(expected(slot)[: len(chain)]):
                if random.random() < 0.75:
                    chain[link] = token
        return drafts

    drafting.propose = proposed


def write_hybrid(
    folder: Path,
    *,
    seed: int = 0,
    mtp: bool = True,
    prefix: str = "",
    changes: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    replaced: Tensors | None = None,
) -> Tensors:
    """A checkpoint; ``changes`` of its config (``...`` removes a key), tensors left out or replaced.

    Returns its tensors by their plain names.
    """
    config = {**CONFIG, **(changes or {})}
    config = {key: value for key, value in config.items() if value is not ...}
    if not mtp:
        config.pop("mtp_num_hidden_layers")
    tensors = hybrid_tensors({**CONFIG, **config}, seed=seed, mtp=mtp)
    tensors = {name: array for name, array in tensors.items() if name not in drop}
    tensors |= replaced or {}
    stored = tensors
    if prefix:
        outer = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5"}
        config, stored = nested(config, tensors, prefix)
        config |= outer
        stored["model.visual.patch_embed.proj.weight"] = np.ones((4, 3), dtype=np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_shards(folder, stored, dtype="F32", shards=1)
    write_tokenizer(folder)
    return tensors


def hybrid_tensors(config: dict[str, Any], *, seed: int, mtp: bool) -> Tensors:
    """Every tensor, torch layout; norms as w - 1 but for ``linear_attn.norm``."""
    make = _Make(seed)
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    tensors: Tensors = {
        "model.embed_tokens.weight": make.normal((vocab, hidden), 1.0),
        "model.norm.weight": make.normal((hidden,), 0.2),
    }
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = make.matrix(vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        linear = (i + 1) % config["full_attention_interval"] != 0
        block = make.delta(config) if linear else make.attention(config)
        tensors |= make.layer(f"model.layers.{i}.", config, block)
    if mtp:
        tensors |= {
            "mtp.fc.weight": make.matrix(hidden, 2 * hidden),
            "mtp.norm.weight": make.normal((hidden,), 0.2),
            "mtp.pre_fc_norm_embedding.weight": make.normal((hidden,), 0.2),
            "mtp.pre_fc_norm_hidden.weight": make.normal((hidden,), 0.2),
        }
        tensors |= make.layer("mtp.layers.0.", config, make.attention(config))
    return tensors


class _Make:
    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def normal(self, shape: tuple[int, ...], scale: float) -> NDArray[np.float32]:
        return (self._random.standard_normal(shape) * scale).astype(np.float32)

    def matrix(self, rows: int, columns: int) -> NDArray[np.float32]:
        return self.normal((rows, columns), columns**-0.5)

    def layer(self, prefix: str, config: dict[str, Any], block: Tensors) -> Tensors:
        hidden, wide = config["hidden_size"], config["intermediate_size"]
        parts = {
            "input_layernorm.weight": self.normal((hidden,), 0.2),
            "post_attention_layernorm.weight": self.normal((hidden,), 0.2),
            "mlp.gate_proj.weight": self.matrix(wide, hidden),
            "mlp.up_proj.weight": self.matrix(wide, hidden),
            "mlp.down_proj.weight": self.matrix(hidden, wide),
            **block,
        }
        return {prefix + name: array for name, array in parts.items()}

    def attention(self, config: dict[str, Any]) -> Tensors:
        hidden, dim = config["hidden_size"], config["head_dim"]
        queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
        parts = {
            "q_proj.weight": self.matrix(2 * queries, hidden),
            "k_proj.weight": self.matrix(keys, hidden),
            "v_proj.weight": self.matrix(keys, hidden),
            "o_proj.weight": self.matrix(hidden, queries),
            "q_norm.weight": self.normal((dim,), 0.2),
            "k_norm.weight": self.normal((dim,), 0.2),
        }
        return {f"self_attn.{name}": array for name, array in parts.items()}

    def delta(self, config: dict[str, Any]) -> Tensors:
        hidden, heads = config["hidden_size"], config["linear_num_value_heads"]
        keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
        values = heads * config["linear_value_head_dim"]
        channels, taps = 2 * keys + values, config["linear_conv_kernel_dim"]
        parts = {
            "in_proj_qkv.weight": self.matrix(channels, hidden),
            "in_proj_z.weight": self.matrix(values, hidden),
            "in_proj_b.weight": self.matrix(heads, hidden),
            "in_proj_a.weight": self.matrix(heads, hidden),
            "conv1d.weight": self.normal((channels, 1, taps), taps**-0.5),
            "A_log": np.log(self._random.uniform(0.05, 2.0, heads)).astype(np.float32),
            "dt_bias": self.normal((heads,), 1.0),
            "norm.weight": 1.0 + self.normal((config["linear_value_head_dim"],), 0.2),
            "out_proj.weight": self.matrix(hidden, values),
        }
        return {f"linear_attn.{name}": array for name, array in parts.items()}
