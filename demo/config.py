"""Sizes of the two demo models and the MiMo-style config.json they are shipped with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes of a MiMo-layout decoder with one MTP block."""

    hidden_size: int = 256
    intermediate_size: int = 448
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    vocab_size: int = 2048
    rope_theta: float = 640000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 8192

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def hf_config(self) -> dict[str, object]:
        """The contents of config.json."""
        return {
            "architectures": ["MiMoForCausalLM"],
            "model_type": "mimo",
            "attention_bias": True,
            "attention_dropout": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_position_embeddings,
            "num_attention_heads": self.num_attention_heads,
            "num_hidden_layers": self.num_hidden_layers,
            "num_key_value_heads": self.num_key_value_heads,
            "num_nextn_predict_layers": 1,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_scaling": None,
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "use_sliding_window": False,
            "vocab_size": self.vocab_size,
        }


PRESETS: dict[str, ModelConfig] = {
    "demo": ModelConfig(),
    "early": ModelConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=2),
    "tiny": ModelConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=1),
}
