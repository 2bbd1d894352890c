"""Qwen3.5, dense: gated delta net layers, and a gated full attention layer after every few of them.

Norms are stored as w - 1, but for the one inside the delta net; a quarter of each head is rotated;
the query projection makes a sigmoid gate beside each head. The MTP head's layer attends.
Names and formulas: the published modeling code of Qwen3.5.
"""

from __future__ import annotations

from selfdraft.export.families.base import Family

QWEN3_5 = Family(
    name="qwen3_5",
    architectures=("Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"),
    model_types=("qwen3_5", "qwen3_5_text"),
    qkv_bias="by_tensors",
    qk_norm=True,
    sliding_window_flag=True,
    rope_theta=10_000.0,
    rms_norm_eps=1e-6,
    max_position_embeddings=32_768,
    mtp_naming="qwen",
    norm_offset=1.0,
    partial_rotary=0.25,
    attention_gate=True,
    hybrid=True,
)
