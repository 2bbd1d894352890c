"""MiniCPM4 and 4.1 (and MiniCPM 1, 2): the Llama decoder with µP scalings and LongRoPE.

The published code multiplies embeddings by ``scale_emb``, what attention and MLP add by
``scale_depth / sqrt(layers)``, and divides the hidden state before the LM head by
``hidden / dim_model_base``; all three are folded into the weights. ``sparse_config`` asks for
InfLLM-v2 attention (arXiv 2506.07900 §2.1), which is selector ``infllm_v2`` here.
"""

from __future__ import annotations

import math

from selfdraft.errors import ConfigError
from selfdraft.export.config import ConfigKeys, not_supported
from selfdraft.export.families.base import Family
from selfdraft.export.families.geometry import Geometry
from selfdraft.manifest import BLOCK_TOKENS, AttentionSpec

MINICPM = Family(
    name="minicpm",
    architectures=("MiniCPMForCausalLM",),
    model_types=("minicpm", "minicpm4"),
    qkv_bias="by_tensors",
    qk_norm=False,
    sliding_window_flag=False,
    rope_theta=10_000.0,
    rms_norm_eps=1e-6,
    max_position_embeddings=32_768,
    mtp_naming="deepseek",
    tied_default=True,
    scalings=True,
    sparse_config=True,
)

WINDOWS = {"kernel_size": 32, "kernel_stride": 16, "block_size": BLOCK_TOKENS}
"""Windows of keys of the released models, the ones that the op implements."""


def read_scalings(config: ConfigKeys, geometry: Geometry) -> dict[str, float]:
    """Factors on embedding, residual and logits; absent keys count as 1, as published."""
    values = {}
    for key in ("scale_emb", "scale_depth", "dim_model_base"):
        value = config.number(key)
        values[key] = 1.0 if value is None else value
        if values[key] <= 0:
            raise ConfigError(
                f"{config.where} says {key} = {values[key]:g}, expected more than 0",
                hint="restore the config.json that came with the checkpoint",
            )
    return {
        "embedding_factor": values["scale_emb"],
        "residual_factor": values["scale_depth"] / math.sqrt(geometry.num_layers),
        "logit_factor": values["dim_model_base"] / geometry.hidden_size,
    }


def read_sparse_config(config: ConfigKeys) -> AttentionSpec | None:
    """Selection as the published kernels make it, or None without ``sparse_config``.

    ``topk`` blocks and the window's are the budget; the window reaches ``window_size / 64`` blocks
    back from the row's own. Raises ``ConfigError`` for windows that the op does not implement.
    """
    section = config.section("sparse_config")
    if section is None:
        return None
    for key, known in WINDOWS.items():
        found = section.integer(key)
        if found is not None and found != known:
            raise not_supported(f"{section.where} {key} {found}", hint=f"only {known} is known")
    if section.flag("use_nope"):
        raise not_supported(
            f"{section.where} use_nope = true", hint="use a model that scores rotated keys"
        )
    numbers = {key: section.positive(key) for key in ("init_blocks", "window_size", "topk")}
    missing = [key for key, value in numbers.items() if value is None]
    window = numbers["window_size"] or 0
    if missing or window % BLOCK_TOKENS:
        problem = f"has no {missing[0]}" if missing else f"says window_size = {window}"
        raise ConfigError(
            f"{section.where} {problem}",
            hint="restore the config.json that came with the checkpoint",
        )
    blocks = window // BLOCK_TOKENS
    return AttentionSpec(
        selector="infllm_v2",
        sinks=numbers["init_blocks"] or 0,
        local_blocks=blocks + 1,
        budget_tokens=((numbers["topk"] or 0) + blocks) * BLOCK_TOKENS,
    )
