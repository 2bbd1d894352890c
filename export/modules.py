"""Torch modules of a dense decoder and its MTP head, parameter names as in the bundle.

They are traced to ONNX by ``export.graph`` and run eagerly as the torch rung of ``verify``. With fp16
matrices (``half_matrices``) products, caches and the graph's boundary are fp16; the residual stream, norms,
rotation and the MLP's product stay fp32, where fp16 could overflow.
Shapes: docs/shapes.md. Weights are ``[in, out]``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from selfdraft.export.attention_op import Attended, StepTensors, cached_attention
from selfdraft.export.delta_layer import DeltaLayer, moved_state_len, replay_rows
from selfdraft.export.layer_parts import LayerEnd, Matrix, rms_norm, vector
from selfdraft.manifest import ModelSpec
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.gated_delta_rule.contract import GatedDeltaRule
from selfdraft.trt_plugins.gated_delta_rule.from_manifest import LayerOp


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate-half rotary embedding of ``x [B, n, heads, d]``; cos, sin ``[B, n, 1, d]``.

    ``sin`` carries the sign of each half, so that the rotation is one concat and one product.
    """
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([high, low], dim=-1) * sin


class Rotary(nn.Module):
    """cos and signed sin ``[B, n, 1, d]`` for rows at ``past_len + 0 … n-1``."""

    inv_freq: Tensor

    def __init__(self, spec: ModelSpec, *, offset: int = 0) -> None:
        super().__init__()
        self.register_buffer("inv_freq", torch.tensor(spec.rope.inv_freq, device="cpu"))
        self.scale, self.offset = spec.rope.scale, offset

    def forward(self, past_len: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        # unsqueeze, not indexing: an index leaves empty slices in the traced graph.
        position = past_len.unsqueeze(1) + torch.arange(rows)  # [B, n]
        if self.offset:
            position = position + self.offset
        angle = position.unsqueeze(2).to(torch.float32) * self.inv_freq  # [B, n, d/2]
        cos, sin = angle.cos(), angle.sin()
        if self.scale != 1.0:
            cos, sin = cos * self.scale, sin * self.scale
        return (
            torch.cat([cos, cos], dim=-1).unsqueeze(2),
            torch.cat([-sin, sin], dim=-1).unsqueeze(2),
        )


class DecoderLayer(LayerEnd):
    """Pre-norm attention and gated MLP, both with a residual."""

    def __init__(self, spec: ModelSpec, op: CachedAttention) -> None:
        super().__init__(spec, spec.num_heads * spec.head_dim)
        self.op = op
        kv_size = spec.num_kv_heads * spec.head_dim
        self.qkv = Matrix(spec.hidden_size, spec.query_size + 2 * kv_size, bias=spec.qkv_bias)
        if spec.qk_norm:
            self.q_norm, self.k_norm = vector(spec.head_dim), vector(spec.head_dim)

    def forward(
        self, x: Tensor, angles: tuple[Tensor, Tensor], step: StepTensors, state: list[Tensor]
    ) -> Attended:
        normed = rms_norm(x, self.input_norm, self.spec.rms_norm_eps)
        projected = self.qkv(normed)
        gate: Tensor | None = None
        if self.spec.attention_gate:
            projected, gate = self._without_gate(projected)
        attended, state, read = self._attend(projected, angles, step, state)
        if gate is not None:
            attended = attended * torch.sigmoid(gate.float()).to(attended.dtype)
        return self.finish(x, attended), state, read

    def _without_gate(self, projected: Tensor) -> tuple[Tensor, Tensor]:
        """Columns q, k, v and the gate ``[B, n, Hq d]``, which lies behind each head's query."""
        spec, (batch, rows, size) = self.spec, projected.shape
        both, kv = torch.split(projected, [spec.query_size, size - spec.query_size], dim=-1)
        both = both.reshape(batch, rows, spec.num_heads, 2 * spec.head_dim)
        q, gate = both.chunk(2, dim=-1)
        q, gate = (part.reshape(batch, rows, spec.query_size // 2) for part in (q, gate))
        return torch.cat([q, kv], dim=-1), gate

    def _attend(
        self,
        projected: Tensor,
        angles: tuple[Tensor, Tensor],
        step: StepTensors,
        state: list[Tensor],
    ) -> Attended:
        spec = self.spec
        batch, rows = projected.shape[0], projected.shape[1]
        num_all = spec.num_heads + 2 * spec.num_kv_heads
        heads = projected.reshape(batch, rows, num_all, spec.head_dim)
        # Queries and keys are rotated together, in fp32: they share the angles.
        if spec.qk_norm:
            q, k, v = torch.split(heads, [spec.num_heads, *[spec.num_kv_heads] * 2], dim=2)
            q = rms_norm(q, self.q_norm, spec.rms_norm_eps)
            k = rms_norm(k, self.k_norm, spec.rms_norm_eps)
            qk = torch.cat([q, k], dim=2)  # [B, n, Hq + Hkv, d]
        else:
            both = spec.num_heads + spec.num_kv_heads
            qk, v = torch.split(heads, [both, spec.num_kv_heads], dim=2)
        rotated = rotary(qk.float(), *angles).to(v.dtype)
        q, k = torch.split(rotated, [spec.num_heads, spec.num_kv_heads], dim=2)
        q, k, v = (part.reshape(batch, rows, -1) for part in (q, k, v))
        return cached_attention(self.op, q, k, v, state, step)


def layer_module(spec: ModelSpec, op: LayerOp) -> DecoderLayer | DeltaLayer:
    """The module of one backbone layer."""
    if isinstance(op, GatedDeltaRule):
        return DeltaLayer(spec, op)
    return DecoderLayer(spec, op)


def half_matrices(module: nn.Module) -> nn.Module:
    """Let every matrix be fp16, and what graphs hand on; norms and biases stay fp32."""
    for part in module.modules():
        if isinstance(part, Matrix):
            part.weight = nn.Parameter(part.weight.half(), requires_grad=False)
        if isinstance(part, Backbone | MtpHead):
            part.plain = torch.float16
    return module


def look_up(ids: Tensor, embedding: Tensor, scale: Tensor | None) -> Tensor:
    """Rows ``ids [B, n]`` of the table ``[V, H]`` as fp32; int8 rows have scales ``[V]``."""
    rows = nn.functional.embedding(ids, embedding).float()
    return rows if scale is None else rows * scale[ids].unsqueeze(-1)


def _counted(counters: list[Tensor]) -> list[Tensor]:
    """``blocks_read [sparse layers]`` as one output, or none."""
    return [torch.cat(counters)] if counters else []


def _pick_rows(x: Tensor, row_index: Tensor) -> Tensor:
    """Rows ``[B, m, H]`` of ``x [B, n, H]``."""
    return torch.gather(x, 1, row_index.unsqueeze(2).expand(-1, -1, x.shape[2]))


class Backbone(nn.Module):
    """``hidden, logits, top_values, top_ids, *states`` of one backbone pass."""

    plain: torch.dtype = torch.float32
    """Of hidden states and logits."""

    def __init__(self, spec: ModelSpec, ops: Sequence[LayerOp], *, candidates: int) -> None:
        super().__init__()
        self.spec, self.ops = spec, tuple(ops)
        self.candidates = min(candidates, spec.vocab_size)
        self.layers = nn.ModuleList(layer_module(spec, op) for op in ops)
        self.norm = vector(spec.hidden_size)
        self.rotary = Rotary(spec)
        self.lm_head = None if spec.tied_head else Matrix(spec.hidden_size, spec.vocab_size)

    def forward(
        self,
        input_ids: Tensor,
        embedding: Tensor,
        past_len: Tensor,
        row_count: Tensor,
        attend_all: Tensor,
        row_index: Tensor,
        states: list[Tensor],
        embedding_scale: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        x = look_up(input_ids, embedding, embedding_scale)
        angles = self.rotary(past_len, input_ids.shape[1])
        step, updated = StepTensors(past_len, row_count, attend_all), list[Tensor]()
        if self.spec.delta is not None:
            # The one reader of state_len, whose new value may take its place at once.
            step.replay_rows = replay_rows(states[0], past_len)
            updated.append(moved_state_len(step))
        counters: list[Tensor] = []
        for layer, op in zip(self.layers, self.ops, strict=True):
            first = len(updated)
            x, state, read = layer(x, angles, step, states[first : first + len(op.states)])
            updated += state
            counters += [] if read is None else [read]
        # [B, n, H] for the tap, but the norm of the logit rows alone where the tap is before it.
        if self.spec.mtp is not None and self.spec.mtp.tap == "post_norm":
            x = rms_norm(x, self.norm, self.spec.rms_norm_eps)
            rows = _pick_rows(x, row_index)
        else:
            rows = rms_norm(_pick_rows(x, row_index), self.norm, self.spec.rms_norm_eps)
        logits = _head(rows, self.lm_head, embedding)
        top = torch.topk(logits, self.candidates)
        x = x.to(self.plain)
        return x, logits, top.values.float(), top.indices, *_counted(counters), *updated


class MtpHead(nn.Module):
    """``hidden_out, draft_ids, top_values, top_ids, *states`` of one MTP pass.

    Source of the wiring: DeepSeek-V3 technical report §2.2; orders and taps by family in
    docs/architecture.md, MTP wiring.
    """

    plain: torch.dtype = torch.float32
    """Of hidden states."""

    def __init__(self, spec: ModelSpec, op: CachedAttention, *, candidates: int) -> None:
        super().__init__()
        assert spec.mtp is not None
        self.spec, self.wiring = spec, spec.mtp
        width = spec.hidden_size
        self.hidden_norm, self.embedding_norm = vector(width), vector(width)
        self.final_norm = vector(width)
        self.proj = Matrix(2 * width, width)
        self.layer = DecoderLayer(spec, op)
        self.rotary = Rotary(spec, offset=int(spec.mtp.position == "next"))
        trimmed = self.wiring.draft_vocab_size
        self.candidates = min(candidates, trimmed or spec.vocab_size)
        if trimmed is not None:
            self.draft_head: Matrix | None = Matrix(width, trimmed)
            self.draft_ids = nn.Parameter(
                torch.empty(trimmed, dtype=torch.int64), requires_grad=False
            )
        else:
            self.draft_head = None
        needs_head = trimmed is None and not spec.tied_head
        self.lm_head = Matrix(width, spec.vocab_size) if needs_head else None

    def forward(
        self,
        input_ids: Tensor,
        embedding: Tensor,
        past_len: Tensor,
        row_count: Tensor,
        attend_all: Tensor,
        row_index: Tensor,
        hidden: Tensor,
        states: list[Tensor],
        embedding_scale: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        step = StepTensors(past_len, row_count, attend_all)
        z, updated, read = self.block(
            input_ids, embedding, step, hidden, states, embedding_scale=embedding_scale
        )
        z = _pick_rows(z, row_index)
        o = self.normed(z)
        logits = _head(o, self.draft_head or self.lm_head, embedding)
        top = torch.topk(logits, self.candidates)
        ids = top.indices if self.draft_head is None else self.draft_ids[top.indices]
        recycled = (o if self.wiring.recycle == "post_norm" else z).to(self.plain)
        counters = [] if read is None else [read]
        return recycled, ids[..., 0], top.values.float(), ids, *_counted(counters), *updated

    def block(
        self,
        input_ids: Tensor,
        embedding: Tensor,
        step: StepTensors,
        hidden: Tensor,
        states: list[Tensor],
        *,
        embedding_scale: Tensor | None = None,
    ) -> Attended:
        """Projection and layer alone: what every row ``[B, n, H]`` is before the final norm."""
        token = look_up(input_ids, embedding, embedding_scale)
        joined = self._join(token, step.past_len, hidden)
        angles = self.rotary(step.past_len, input_ids.shape[1])
        attended: Attended = self.layer(self.proj(joined).float(), angles, step, states)
        return attended

    def normed(self, z: Tensor) -> Tensor:
        """What the draft head reads."""
        return rms_norm(z, self.final_norm, self.spec.rms_norm_eps)

    def _join(self, token: Tensor, past_len: Tensor, hidden: Tensor) -> Tensor:
        """``[B, n, 2 H]``: normed hidden state and embedding in the order of the manifest."""
        eps = self.spec.rms_norm_eps
        if self.wiring.mask_first_embedding:
            position = past_len.unsqueeze(1) + torch.arange(token.shape[1])
            token = token * (position > 0).unsqueeze(2).to(token.dtype)
        parts = [
            rms_norm(hidden, self.hidden_norm, eps),
            rms_norm(token, self.embedding_norm, eps),
        ]
        if self.wiring.concat == "embedding_first":
            parts.reverse()
        return torch.cat(parts, dim=-1)


def _head(rows: Tensor, head: Matrix | None, embedding: Tensor) -> Tensor:
    return torch.matmul(rows.to(embedding.dtype), embedding.T) if head is None else head(rows)
