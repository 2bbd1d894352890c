"""Qwen2 and Qwen2.5, dense: bias on q, k and v, none on o."""

from __future__ import annotations

from selfdraft.export.families.base import Family

QWEN2 = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    model_types=("qwen2",),
    qkv_bias="always",
    qk_norm=False,
    sliding_window_flag=True,
    rope_theta=10_000.0,
    rms_norm_eps=1e-6,
    max_position_embeddings=32_768,
    mtp_naming="qwen",
)
