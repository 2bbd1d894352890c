"""Torch module of a gated delta net layer, parameter names as in the bundle, and its op.

``selfdraft::GatedDeltaRule`` is a node while a graph is traced, and computed row by row otherwise.
Contract: docs/gated_delta.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from selfdraft.export.attention_op import Attended, StepTensors
from selfdraft.export.layer_parts import LayerEnd, Matrix, rms_norm, vector
from selfdraft.manifest import ModelSpec
from selfdraft.recurrent import DELTA_BLOCK, LOG_ROWS
from selfdraft.trt_plugins.gated_delta_rule.contract import (
    L2_EPS,
    OP_DOMAIN,
    OP_NAME,
    OP_VERSION,
    GatedDeltaRule,
)


class Rows(NamedTuple):
    """Rows of a step: ``x [B, n, C]`` before the convolution, as its projection gives it; ``beta`` and
    ``log_decay [B, n, Hv]`` fp32."""

    x: Tensor
    beta: Tensor
    log_decay: Tensor


class DeltaLayer(LayerEnd):
    """Pre-norm gated delta net and gated MLP, both with a residual."""

    def __init__(self, spec: ModelSpec, op: GatedDeltaRule) -> None:
        super().__init__(spec, op.value_size)
        self.op = op
        self.in_proj = Matrix(spec.hidden_size, op.channels + op.value_size)
        self.gates = Matrix(spec.hidden_size, 2 * op.num_value_heads)
        self.conv = nn.Parameter(torch.empty(op.channels, op.taps), requires_grad=False)
        self.a_log, self.dt_bias = vector(op.num_value_heads), vector(op.num_value_heads)
        self.delta_norm = vector(op.value_dim)

    def forward(
        self, x: Tensor, angles: tuple[Tensor, Tensor], step: StepTensors, state: list[Tensor]
    ) -> Attended:
        op, eps = self.op, self.spec.rms_norm_eps
        normed = rms_norm(x, self.input_norm, eps)
        mixed, z = torch.split(self.in_proj(normed), [op.channels, op.value_size], dim=-1)
        write, decay = self.gates(normed).float().chunk(2, dim=-1)
        decay = -self.a_log.exp() * nn.functional.softplus(decay + self.dt_bias)
        rows = Rows(mixed, torch.sigmoid(write), decay)
        y, state = gated_delta_rule(op, rows, self.conv, state, step)
        batch, num_rows = x.shape[0], x.shape[1]
        heads = y.reshape(batch, num_rows, op.num_value_heads, op.value_dim)
        z = z.reshape(batch, num_rows, op.num_value_heads, op.value_dim).float()
        heads = rms_norm(heads, self.delta_norm, eps) * (z * torch.sigmoid(z))
        return self.finish(x, heads.reshape(batch, num_rows, op.value_size)), state, None


def replay_rows(state_len: Tensor, past_len: Tensor) -> Tensor:
    """Rows of the logs that come before ``past_len [B]``; ``state_len [B, 1]``."""
    rows = (past_len - state_len.squeeze(1)).clamp(0, LOG_ROWS)
    return rows * (past_len > 0).to(torch.int64)


def moved_state_len(step: StepTensors) -> Tensor:
    """``state_len [B, 1]`` after a step (contract: ``state_length``)."""
    assert step.replay_rows is not None
    start = torch.div(step.past_len, DELTA_BLOCK, rounding_mode="floor") * DELTA_BLOCK
    end = torch.div(
        step.past_len + step.row_count + (DELTA_BLOCK - 1), DELTA_BLOCK, rounding_mode="floor"
    )
    moved = torch.maximum(start, end * DELTA_BLOCK - LOG_ROWS)
    idle = step.past_len - step.replay_rows
    return torch.where(step.row_count > 0, moved, idle).unsqueeze(1)


def gated_delta_rule(
    op: GatedDeltaRule,
    rows: Rows,
    conv_weight: Tensor,
    states: Sequence[Tensor],
    step: StepTensors,
) -> tuple[Tensor, list[Tensor]]:
    """``y [B, n, Hv dv]`` and the updated states in the order of ``op.states``."""
    assert step.replay_rows is not None
    if torch.onnx.is_in_onnx_export():
        return _node(op, rows, conv_weight, states, step)
    return _row_by_row(op, rows, conv_weight, states, step)


def _node(
    op: GatedDeltaRule,
    rows: Rows,
    conv_weight: Tensor,
    states: Sequence[Tensor],
    step: StepTensors,
) -> tuple[Tensor, list[Tensor]]:
    batch, num_rows = rows.x.shape[0], rows.x.shape[1]
    assert step.replay_rows is not None
    outputs = torch.onnx.ops.symbolic_multi_out(
        f"{OP_DOMAIN}::{OP_NAME}",
        (*rows, conv_weight, *states, step.past_len, step.row_count, step.replay_rows),
        {**op.onnx_attributes()},
        dtypes=[torch.float32, *(state.dtype for state in states)],
        shapes=[(batch, num_rows, op.value_size), *(state.shape for state in states)],
        version=OP_VERSION,
    )
    return outputs[0], list(outputs[1:])


def _row_by_row(
    op: GatedDeltaRule,
    rows: Rows,
    conv_weight: Tensor,
    states: Sequence[Tensor],
    step: StepTensors,
) -> tuple[Tensor, list[Tensor]]:
    """The recurrence over log and step of all slots; rows that are not real change nothing."""
    recurrent, stored_rows, gate_rows = states
    rows, conv_rows = rows._replace(x=rows.x.float()), stored_rows.float()
    replay, past = step.replay_rows, step.past_len
    assert replay is not None
    batch, num_rows, before = rows.x.shape[0], rows.x.shape[1], op.taps - 1
    fresh = (past == 0).view(-1, 1, 1)
    kept = torch.where(fresh, 0.0, conv_rows)
    total = int((replay + step.row_count).max())
    log = torch.arange(max(total, 1)) < replay[:, None]  # [B, T]
    real = torch.arange(max(total, 1)) < (replay + step.row_count)[:, None]
    source = (torch.arange(max(total, 1)) - replay[:, None]).clamp(0, num_rows - 1)
    place = torch.arange(max(total, 1)).clamp(max=LOG_ROWS - 1).expand(batch, -1)
    raw = _picked(kept[:, before:], place, rows.x, source, log) * real.unsqueeze(2)
    gates = torch.cat([rows.beta, rows.log_decay], dim=-1)
    gates = _picked(gate_rows, place, gates, source, log) * real.unsqueeze(2)
    raw = torch.cat([kept[:, :before], raw], dim=1)  # [B, taps - 1 + T, C]
    q, k, v = _heads(op, raw, conv_weight)
    moved = moved_state_len(step).squeeze(1) - (past - replay)
    state = torch.where(fresh.unsqueeze(3), 0.0, recurrent)
    new_state, outputs = state, []
    beta, log_decay = gates.chunk(2, dim=-1)
    for t in range(raw.shape[1] - before):
        new_state = torch.where((moved == t).view(-1, 1, 1, 1), state, new_state)
        state = state * log_decay[:, t, :, None, None].exp()
        known = (state * k[:, t].unsqueeze(-1)).sum(-2)
        written = (v[:, t] - known) * beta[:, t].unsqueeze(-1)
        state = state + k[:, t].unsqueeze(-1) * written.unsqueeze(-2)
        outputs.append((state * q[:, t].unsqueeze(-1)).sum(-2))
    new_state = torch.where((moved == total).view(-1, 1, 1, 1), state, new_state)
    y = torch.stack(outputs, dim=1)  # [B, T, Hv, dv]
    wanted = (torch.arange(num_rows) + replay[:, None]).clamp(max=y.shape[1] - 1)
    y = y[torch.arange(batch)[:, None], wanted].reshape(batch, num_rows, op.value_size)
    conv_rows = _moved(raw, moved, before + LOG_ROWS).to(stored_rows.dtype)
    logs = [conv_rows, _moved(gates, moved, LOG_ROWS)]
    return y, [new_state, *logs]


def _picked(log: Tensor, place: Tensor, rows: Tensor, source: Tensor, in_log: Tensor) -> Tensor:
    """Rows ``[B, T, ...]``: of the log where ``in_log``, else of the step."""
    slots = torch.arange(rows.shape[0])[:, None]
    return torch.where(in_log.unsqueeze(2), log[slots, place], rows[slots, source])


def _moved(rows: Tensor, first: Tensor, count: int) -> Tensor:
    """Rows ``first[b] + 0 … count - 1`` of each slot, zeros behind the end."""
    padded = nn.functional.pad(rows, (0, 0, 0, count))
    index = first[:, None] + torch.arange(count)
    return padded[torch.arange(rows.shape[0])[:, None], index]


def _heads(op: GatedDeltaRule, raw: Tensor, conv_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q and k ``[B, T, Hv, dk]``, v ``[B, T, Hv, dv]`` behind convolution, SiLU and norms."""
    mixed = nn.functional.conv1d(
        raw.transpose(1, 2), conv_weight.unsqueeze(1), groups=op.channels
    ).transpose(1, 2)
    mixed = nn.functional.silu(mixed)
    q, k, v = torch.split(mixed, [op.key_size, op.key_size, op.value_size], dim=-1)
    shape = (*mixed.shape[:2], op.num_key_heads, op.key_dim)
    q, k = (
        (x / torch.sqrt((x * x).sum(-1, keepdim=True) + L2_EPS)).repeat_interleave(op.group, dim=2)
        for x in (part.reshape(shape) for part in (q, k))
    )
    v = v.reshape(*mixed.shape[:2], op.num_value_heads, op.value_dim)
    return q * op.key_dim**-0.5, k, v
