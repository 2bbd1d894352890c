"""MiMo: the Qwen2 decoder (bias on q, k, v) and an MTP head of its own naming.

The head lies in ``model.mtp_layers.0``, joins hidden state before embedding and reads the
backbone before its final norm. The published code declares what is here; there is no entry in
transformers.
"""

from __future__ import annotations

from selfdraft.export.families.base import Family

MIMO = Family(
    name="mimo",
    architectures=("MiMoForCausalLM",),
    model_types=("mimo",),
    qkv_bias="always",
    qk_norm=False,
    sliding_window_flag=True,
    rope_theta=10_000.0,
    rms_norm_eps=1e-6,
    max_position_embeddings=32_768,
    mtp_naming="mimo",
)
