"""Parts that decoder layers of every kind are made of. Weights are ``[in, out]``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from selfdraft.manifest import ModelSpec


class Matrix(nn.Module):
    """``x @ weight (+ bias)`` in the type of ``weight [in, out]``."""

    def __init__(self, rows: int, columns: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, columns), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(columns), requires_grad=False) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        y = torch.matmul(x.to(self.weight.dtype), self.weight)
        return y if self.bias is None else y + self.bias.to(y.dtype)


def vector(size: int) -> nn.Parameter:
    """A parameter ``[size]``, not filled."""
    return nn.Parameter(torch.empty(size), requires_grad=False)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x * w / sqrt(mean(x²) + eps)`` over the last axis, fp32.

    Written as pow, mean, sqrt, div: the form that ONNX Runtime fuses into one kernel.
    """
    x = x.float()
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class LayerEnd(nn.Module):
    """Norms, output projection ``[mixed_size, H]`` and gated MLP: what every layer has."""

    def __init__(self, spec: ModelSpec, mixed_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.input_norm, self.post_norm = vector(spec.hidden_size), vector(spec.hidden_size)
        self.o = Matrix(mixed_size, spec.hidden_size)
        self.gate_up = Matrix(spec.hidden_size, 2 * spec.intermediate_size)
        self.down = Matrix(spec.intermediate_size, spec.hidden_size)
        if spec.sandwich_norm:
            self.attention_out_norm = vector(spec.hidden_size)
            self.mlp_out_norm = vector(spec.hidden_size)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The layer's output from its input ``x [B, n, H]`` and what ``o`` multiplies."""
        eps = self.spec.rms_norm_eps
        added = self.o(mixed)
        if self.spec.sandwich_norm:
            added = rms_norm(added, self.attention_out_norm, eps)
        x = x + added.float()
        gate, up = self.gate_up(rms_norm(x, self.post_norm, eps)).float().chunk(2, dim=-1)
        added = self.down(gate * torch.sigmoid(gate) * up)
        if self.spec.sandwich_norm:
            added = rms_norm(added, self.mlp_out_norm, eps)
        y: Tensor = x + added.float()
        return y
