"""Llama 2 and 3, and what shares their layer: plain, usually no bias; llama3 rope scaling."""

from __future__ import annotations

from selfdraft.export.families.base import Family

LLAMA = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    model_types=("llama",),
    qkv_bias="by_tensors",
    qk_norm=False,
    sliding_window_flag=False,
    rope_theta=10_000.0,
    rms_norm_eps=1e-6,
    max_position_embeddings=2_048,
    mtp_naming="qwen",
)
