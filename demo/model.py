"""A MiMo-layout decoder with one MTP block; `state_dict()` has the names of the checkpoint.

B sequences, T tokens, H query heads, K kv-heads, D head dim, E hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo.config import ModelConfig

KeyValue = tuple[Tensor, Tensor]


class RMSNorm(nn.Module):
    """Root-mean-square norm with a gain, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """`[..., size]` to the same shape and dtype."""
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight).to(x.dtype)


def rope_tables(config: ModelConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[T, D]` of the positions `[T]`."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = positions.float()[:, None] * config.rope_theta**-exponents
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of `x` `[B, heads, T, D]` (first and second half of D form the pairs)."""
    cos, sin = rope
    first, second = x.float().chunk(2, -1)
    return (x * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with biases on query, key and value."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.group = config.num_attention_heads // config.num_key_value_heads
        size, kv_size = config.hidden_size, config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(size, size)
        self.k_proj = nn.Linear(size, kv_size)
        self.v_proj = nn.Linear(size, kv_size)
        self.o_proj = nn.Linear(size, size, bias=False)

    def _heads(self, x: Tensor) -> Tensor:
        """`[B, T, heads * D]` to `[B, heads, T, D]`."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def project(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries `[B, H, T, D]`, keys and values `[B, K, T, D]`."""
        q, k = self._heads(self.q_proj(x)), self._heads(self.k_proj(x))
        return rotate(q, rope), rotate(k, rope), self._heads(self.v_proj(x))

    def grouped(self, x: Tensor) -> Tensor:
        """`[B, K, T, D]` to `[B, H, T, D]`: every kv-head serves its group of query heads."""
        return x.repeat_interleave(self.group, 1)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], past: KeyValue | None = None
    ) -> tuple[Tensor, KeyValue]:
        """Causal attention over `x` `[B, T, E]`; also returns all keys and values.

        With `past` keys and values `[B, K, S, D]`, `x` must hold a single token.
        """
        q, k, v = self.project(x, rope)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        out = F.scaled_dot_product_attention(
            q, self.grouped(k), self.grouped(v), is_causal=past is None
        )
        return self.o_proj(out.transpose(1, 2).flatten(2)), (k, v)

    def recycled(self, x: Tensor, rope: tuple[Tensor, Tensor], past: list[KeyValue]) -> Tensor:
        """Attention of one more draft step for every starting slot at once.

        Row p of `x` `[B, T, E]` continues the draft that started at slot p. It sees the rows
        0..p of `past[0]` and, of each later entry of `past`, only row p; its own keys and values
        are appended to `past`.
        """
        q, k, v = self.project(x, rope)
        k, v = self.grouped(k), self.grouped(v)
        past.append((k, v))
        length = x.shape[1]
        scores = q @ past[0][0].transpose(-1, -2)  # [B, H, T, T]
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
        own = [(q * key).sum(-1, keepdim=True) for key, _ in past[1:]]  # each [B, H, T, 1]
        weights = (
            (torch.cat([scores, *own], -1).float() * self.head_dim**-0.5).softmax(-1).to(v.dtype)
        )
        out = weights[..., :length] @ past[0][1]
        for index, (_, value) in enumerate(past[1:]):
            out = out + weights[..., length + index, None] * value
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, T, E]` to the same shape."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Decoder layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], past: KeyValue | None = None
    ) -> tuple[Tensor, KeyValue]:
        """`[B, T, E]` to the same shape, with the keys and values of the attention."""
        attended, keys_values = self.self_attn(self.input_layernorm(x), rope, past)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), keys_values


class MtpBlock(Block):
    """Predicts x[p+2] from the backbone hidden h[p] (before its final norm) and x[p+1]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.token_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.final_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def join(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Block input `[B, T, E]` from the hidden state and the next token's embedding."""
        pair = torch.cat([self.hidden_layernorm(hidden), self.token_layernorm(embedded)], -1)
        return self.input_proj(pair)

    def draft(
        self, hidden: Tensor, embedded: Tensor, rope: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, list[KeyValue]]:
        """First draft step: output after the final norm `[B, T, E]` and the keys and values."""
        out, keys_values = self(self.join(hidden, embedded), rope)
        k, v = keys_values
        return self.final_layernorm(out), [(self.self_attn.grouped(k), self.self_attn.grouped(v))]

    def redraft(
        self, hidden: Tensor, embedded: Tensor, rope: tuple[Tensor, Tensor], past: list[KeyValue]
    ) -> Tensor:
        """A later draft step on recycled outputs `[B, T, E]`; appends to `past`."""
        x = self.join(hidden, embedded)
        x = x + self.self_attn.recycled(self.input_layernorm(x), rope, past)
        return self.final_layernorm(x + self.mlp(self.post_attention_layernorm(x)))


class Backbone(nn.Module):
    """Embedding, decoder layers, final norm, and the MTP block (so that names match)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mtp_layers = nn.ModuleList([MtpBlock(config)])


@dataclass
class Outputs:
    """Normed states `[B, T, E]`, each ready for `lm_head`.

    `main[:, p]` predicts token p+1; `drafts[d][:, p]` predicts token p+2+d.
    """

    main: Tensor
    drafts: list[Tensor]


class DemoModel(nn.Module):
    """The whole model."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @property
    def mtp(self) -> MtpBlock:
        """The MTP block."""
        block = self.model.mtp_layers[0]
        assert isinstance(block, MtpBlock)
        return block

    def hidden_states(self, ids: Tensor) -> Tensor:
        """Backbone output before the final norm, `[B, T, E]`, for token ids `[B, T]`."""
        rope = rope_tables(self.config, torch.arange(ids.shape[1]))
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x, _ = layer(x, rope)
        return x

    def forward(self, ids: Tensor, *, num_drafts: int = 1, recycle_rows: int = 0) -> Outputs:
        """Main states and draft states of the token ids `[B, T]`.

        Draft steps after the first run with the true tokens on the first `recycle_rows` rows.
        """
        hidden = self.hidden_states(ids)
        embedded = self.model.embed_tokens(ids)
        length = ids.shape[1] - 1
        rope = rope_tables(self.config, torch.arange(length))
        out, past = self.mtp.draft(hidden[:, :-1], embedded[:, 1:], rope)
        drafts = [out]
        past = [(k[:recycle_rows], v[:recycle_rows]) for k, v in past]
        for depth in range(1, num_drafts if recycle_rows else 1):
            rope = rope_tables(self.config, torch.arange(length) + depth)
            ahead = F.pad(embedded[:recycle_rows, 1 + depth :], (0, 0, 0, depth))
            drafts.append(self.mtp.redraft(drafts[-1][:recycle_rows], ahead, rope, past))
        return Outputs(self.model.norm(hidden), drafts)
