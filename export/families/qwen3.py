"""Qwen3, dense: RMSNorm over head_dim on queries and keys, usually no bias."""

from __future__ import annotations

from selfdraft.export.families.base import Family

QWEN3 = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    model_types=("qwen3",),
    qkv_bias="by_tensors",
    qk_norm=True,
    sliding_window_flag=True,
    rope_theta=10_000.0,
    rms_norm_eps=1e-6,
    max_position_embeddings=32_768,
    mtp_naming="qwen",
)
