"""Geometries of published models: their config and the name and shape of every tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

NamedShape = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Sizes and layout of one model that attends in every layer, MiMo's names for its MTP head."""

    architecture: str
    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    bias: bool
    qk_norm: bool
    tied: bool

    def config(self) -> dict[str, Any]:
        """``config.json``."""
        return {
            **self._sizes(),
            "architectures": [self.architecture],
            "rope_theta": 640_000.0,
            "rms_norm_eps": 1e-5,
            "num_nextn_predict_layers": 1,
        }

    def _sizes(self) -> dict[str, Any]:
        return {
            "model_type": self.model_type,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.ffn,
            "vocab_size": self.vocab,
            "max_position_embeddings": 32_768,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "bfloat16",
            "eos_token_id": 256,
        }

    def shapes(self) -> Iterator[NamedShape]:
        """Every tensor, in the order of the layers."""
        yield from self._backbone("model.")
        head = "model.mtp_layers.0."
        for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
            yield f"{head}{name}.weight", (self.hidden,)
        yield f"{head}input_proj.weight", (self.hidden, 2 * self.hidden)
        yield from self._layer(head, self._attention())

    def _backbone(self, prefix: str) -> Iterator[NamedShape]:
        yield f"{prefix}embed_tokens.weight", (self.vocab, self.hidden)
        for i in range(self.layers):
            yield from self._layer(f"{prefix}layers.{i}.", self._mixer(i))
        yield f"{prefix}norm.weight", (self.hidden,)
        if not self.tied:
            yield "lm_head.weight", (self.vocab, self.hidden)

    def _layer(self, prefix: str, mixer: Iterator[NamedShape]) -> Iterator[NamedShape]:
        for name, shape in mixer:
            yield prefix + name, shape
        for name in ("gate", "up"):
            yield f"{prefix}mlp.{name}_proj.weight", (self.ffn, self.hidden)
        yield f"{prefix}mlp.down_proj.weight", (self.hidden, self.ffn)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}{name}.weight", (self.hidden,)

    def _mixer(self, layer: int) -> Iterator[NamedShape]:
        """What backbone layer ``layer`` mixes rows with."""
        return self._attention()

    def _attention(self, *, gate: bool = False) -> Iterator[NamedShape]:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        for name, size in (("q", queries * (1 + gate)), ("k", keys), ("v", keys)):
            yield f"self_attn.{name}_proj.weight", (size, self.hidden)
            if self.bias:
                yield f"self_attn.{name}_proj.bias", (size,)
        yield "self_attn.o_proj.weight", (self.hidden, queries)
        if self.qk_norm:
            yield "self_attn.q_norm.weight", (self.head_dim,)
            yield "self_attn.k_norm.weight", (self.head_dim,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen35Model(Model):
    """Qwen3.5: a gated delta net in all layers but every fourth; inside a multimodal checkpoint."""

    delta_key_heads: int
    delta_value_heads: int
    delta_dim: int
    """Of keys and of values."""
    interval: int = 4
    taps: int = 4

    def config(self) -> dict[str, Any]:
        kinds = ("full_attention", "linear_attention")
        text = {
            **self._sizes(),
            "rms_norm_eps": 1e-6,
            "attn_output_gate": True,
            "full_attention_interval": self.interval,
            "layer_types": [kinds[self._is_delta(i)] for i in range(self.layers)],
            "linear_conv_kernel_dim": self.taps,
            "linear_key_head_dim": self.delta_dim,
            "linear_value_head_dim": self.delta_dim,
            "linear_num_key_heads": self.delta_key_heads,
            "linear_num_value_heads": self.delta_value_heads,
            "mtp_num_hidden_layers": 1,
            "mtp_use_dedicated_embeddings": False,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000_000,
                "partial_rotary_factor": 0.25,
                "mrope_section": [11, 11, 10],
                "mrope_interleaved": True,
            },
        }
        return {
            "architectures": [self.architecture],
            "model_type": "qwen3_5",
            "tie_word_embeddings": self.tied,
            "text_config": text,
            "vision_config": {},
        }

    def shapes(self) -> Iterator[NamedShape]:
        yield from self._backbone("model.language_model.")
        for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
            yield f"mtp.{name}.weight", (self.hidden,)
        yield "mtp.fc.weight", (self.hidden, 2 * self.hidden)
        yield from self._layer("mtp.layers.0.", self._attention(gate=True))

    def _is_delta(self, layer: int) -> bool:
        return (layer + 1) % self.interval != 0

    def _mixer(self, layer: int) -> Iterator[NamedShape]:
        return self._delta_net() if self._is_delta(layer) else self._attention(gate=True)

    def _delta_net(self) -> Iterator[NamedShape]:
        heads = self.delta_value_heads
        values, keys = heads * self.delta_dim, self.delta_key_heads * self.delta_dim
        sizes = {"qkv": 2 * keys + values, "z": values, "b": heads, "a": heads}
        for name, size in sizes.items():
            yield f"linear_attn.in_proj_{name}.weight", (size, self.hidden)
        yield "linear_attn.conv1d.weight", (sizes["qkv"], 1, self.taps)
        yield "linear_attn.A_log", (heads,)
        yield "linear_attn.dt_bias", (heads,)
        yield "linear_attn.norm.weight", (self.delta_dim,)
        yield "linear_attn.out_proj.weight", (self.hidden, values)


MODELS: dict[str, Model] = {
    "mimo-7b": Model(
        architecture="MiMoForCausalLM",
        model_type="mimo",
        hidden=4096,
        layers=36,
        heads=32,
        kv_heads=8,
        head_dim=128,
        ffn=11_008,
        vocab=151_680,
        bias=True,
        qk_norm=False,
        tied=False,
    ),
    "qwen3.5-4b": Qwen35Model(
        architecture="Qwen3_5ForConditionalGeneration",
        model_type="qwen3_5_text",
        hidden=2560,
        layers=32,
        heads=16,
        kv_heads=4,
        head_dim=256,
        ffn=9216,
        vocab=248_320,
        bias=False,
        qk_norm=True,
        tied=True,
        delta_key_heads=16,
        delta_value_heads=32,
        delta_dim=128,
    ),
    "tiny": Model(
        architecture="MiMoForCausalLM",
        model_type="mimo",
        hidden=256,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=64,
        ffn=512,
        vocab=1024,
        bias=True,
        qk_norm=False,
        tied=False,
    ),
}
