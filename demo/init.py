"""Starting weights: small random numbers, and optionally hand-placed copying heads.

The structured start writes two circuits that a model learns slowly by itself. Layer 0 has heads
that look 1, 2 and 3 tokens back through their query and key biases. Layer 1 and the MTP block
have a head that finds an earlier place where the same token stood and copies its successor.
The hidden state is divided into parts: token, previous token, two and three back, copied token.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor

from demo.config import ModelConfig
from demo.model import Attention, Block, DemoModel

TOKEN, PREVIOUS, SECOND, THIRD, COPIED = (
    slice(0, 96), slice(96, 160), slice(160, 176), slice(176, 192), slice(192, 256),
)  # fmt: skip
OFFSET_SHARPNESS = 9.0
MATCH_SHARPNESS = 2.2
NUM_FAST_PAIRS = 8
FIRST_SLOW_PAIR = 14


def random_start(model: DemoModel) -> None:
    """Small normal weights; outputs of the residual branches start smaller."""
    depth = 2 * model.config.num_hidden_layers
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            torch.nn.init.zeros_(parameter) if name.endswith("bias") else torch.nn.init.ones_(
                parameter
            )
        elif "embed_tokens" in name:
            torch.nn.init.normal_(parameter, std=0.5)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            torch.nn.init.normal_(
                parameter, std=parameter.shape[1] ** -0.5 / math.sqrt(depth) * 0.5
            )
        else:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5 * 0.7)


def _orthonormal(rows: int, columns: int) -> Tensor:
    """A random `[rows, columns]` matrix with orthonormal rows (rows <= columns)."""
    return torch.linalg.qr(torch.randn(columns, rows))[0].T


def _rotated(vector: Tensor, config: ModelConfig, offset: int) -> Tensor:
    """`vector` `[D]` turned by RoPE to position `-offset`."""
    half = config.head_dim // 2
    frequencies = config.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
    cos, sin = torch.cos(-offset * frequencies), torch.sin(-offset * frequencies)
    first, second = vector[:half], vector[half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin])


def _offset_heads(attention: Attention, config: ModelConfig, code: Tensor) -> None:
    """Heads 1 to 3 look 1 to 3 tokens back and write what they find into their own part."""
    dim, half = config.head_dim, config.head_dim // 2
    key = torch.zeros(dim)
    key[:NUM_FAST_PAIRS] = key[half : half + NUM_FAST_PAIRS] = math.sqrt(OFFSET_SHARPNESS)
    for kv_head in range(config.num_key_value_heads):
        rows = slice(kv_head * dim, (kv_head + 1) * dim)
        attention.k_proj.bias.data[rows] = key
        attention.v_proj.weight.data[rows] = 0
        attention.v_proj.weight.data[rows, TOKEN] = code
    for head, part in ((1, PREVIOUS), (2, SECOND), (3, THIRD)):
        rows, width = slice(head * dim, (head + 1) * dim), part.stop - part.start
        attention.q_proj.weight.data[rows] *= 0.1
        attention.q_proj.bias.data[rows] = _rotated(key, config, head) * 2
        attention.o_proj.weight.data[:, rows] = 0
        attention.o_proj.weight.data[part, rows] = 0.5 * torch.eye(dim)[:width]


def _copy_head(attention: Attention, config: ModelConfig, code: Tensor) -> None:
    """Head 0 attends to places whose previous token is the current token and copies theirs."""
    dim, half = config.head_dim, config.head_dim // 2
    slow = [*range(FIRST_SLOW_PAIR, half), *range(half + FIRST_SLOW_PAIR, dim)]
    select = torch.zeros(dim, dim)
    select[slow, slow] = MATCH_SHARPNESS  # keeps only dimensions that hardly turn
    for projection, weight, part in (
        (attention.q_proj, select @ code, TOKEN),
        (attention.k_proj, select, PREVIOUS),
        (attention.v_proj, code, TOKEN),
    ):
        projection.weight.data[:dim] = 0
        projection.weight.data[:dim, part] = weight
    attention.o_proj.weight.data[:, :dim] = 0
    attention.o_proj.weight.data[COPIED, :dim] = torch.eye(dim)


def structured_start(model: DemoModel) -> None:
    """Adds the copying circuits to a randomly started model of the `demo` size."""
    config = model.config
    code = _orthonormal(PREVIOUS.stop - PREVIOUS.start, TOKEN.stop - TOKEN.start)  # [64, 96]
    embedding = model.model.embed_tokens.weight.data
    embedding[:, TOKEN.stop :] *= 0.1
    first, second = (
        cast(Block, layer).self_attn for layer in model.model.layers[:2]
    )  # the demo preset has 3
    _offset_heads(first, config, code)
    _copy_head(second, config, code)
    head = model.lm_head.weight.data
    head[:, COPIED] = embedding[:, TOKEN] @ code.T * 0.3
    projection = model.mtp.input_proj.weight.data  # [E, 2E]: hidden first, then the embedding
    projection *= 0.3
    size = config.hidden_size
    projection[:192] *= 0.1
    projection[TOKEN, size : size + TOKEN.stop] = torch.eye(TOKEN.stop)
    projection[PREVIOUS, TOKEN] = code
    _copy_head(model.mtp.self_attn, config, code)
