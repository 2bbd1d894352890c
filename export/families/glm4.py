"""GLM-4 (0414) and the text part of GLM-OCR: dense grouped-query attention.

A part of each head is rotated, in interleaved pairs; attention and MLP have a norm on their output
too. The MTP head of this line has DeepSeek's names, ``model.layers.N`` behind the last layer.
"""

from __future__ import annotations

from dataclasses import replace

from selfdraft.export.families.base import Family

GLM4 = Family(
    name="glm4",
    architectures=("Glm4ForCausalLM",),
    model_types=("glm4",),
    qkv_bias="by_tensors",
    qk_norm=False,
    sliding_window_flag=False,
    rope_theta=10_000.0,
    rms_norm_eps=1.5625e-07,
    max_position_embeddings=131_072,
    mtp_naming="deepseek",
    sandwich_norm=True,
    fused_gate_up=True,
    rotary_form="interleaved",
    partial_rotary=0.5,
)

GLM_OCR = replace(
    GLM4,
    name="glm_ocr",
    architectures=("GlmOcrForConditionalGeneration",),
    model_types=("glm_ocr", "glm_ocr_text"),
    rms_norm_eps=1e-5,
    partial_rotary=1.0,
)
