"""Layers of the reference backend in NumPy fp64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from selfdraft.manifest import ModelSpec
from selfdraft.runtime.backend import IntArray, Step
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.cached_attention.oracle import cached_attention
from selfdraft.trt_plugins.cached_attention.states import LayerStates, empty_states
from selfdraft.trt_plugins.gated_delta_rule.contract import GatedDeltaRule
from selfdraft.trt_plugins.gated_delta_rule.contract import empty_states as delta_states
from selfdraft.trt_plugins.gated_delta_rule.oracle import gated_delta_rule

Array = NDArray[np.float64]


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """``x * weight / sqrt(mean(x²) + eps)`` over the last axis."""
    mean_square = np.einsum("...i,...i->...", x, x)[..., None] / x.shape[-1]
    return np.asarray(x / np.sqrt(mean_square + eps) * weight)


def silu(x: Array) -> Array:
    """``x * sigmoid(x)``, without overflow for large negative x."""
    return x * sigmoid(x)


def sigmoid(x: Array) -> Array:
    """``1 / (1 + exp(-x))``, without overflow for large negative x."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Cosines and sines ``[B, n, 1, d / 2]`` of the positions of one step."""

    cos: Array
    sin: Array

    def apply(self, x: Array) -> Array:
        """Rotate heads ``x [B, n, heads, d]``, rotate-half form."""
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate(
            [first * self.cos - second * self.sin, second * self.cos + first * self.sin], axis=-1
        )


def rotation(model: ModelSpec, past_len: IntArray, num_rows: int) -> Rotation:
    """The rotation of rows at positions ``past_len[b] + i``."""
    positions = past_len[:, None] + np.arange(num_rows)  # [B, n]
    angles = positions[..., None, None] * np.asarray(model.rope.inv_freq)  # [B, n, 1, d / 2]
    scale = model.rope.scale
    return Rotation(cos=np.cos(angles) * scale, sin=np.sin(angles) * scale)


class Heads(NamedTuple):
    """What attention takes: q ``[B, n, Hq, d]``, k and v ``[B, n, Hkv, d]``; gate like q, or empty."""

    q: Array
    k: Array
    v: Array
    gate: Array


class LayerStep(NamedTuple):
    """What every layer of a pass takes beside its input and states."""

    step: Step
    rotary: Rotation
    replay_rows: IntArray | None = None
    """``[B]`` rows of the logs before ``past_len``; hybrid models only."""


class _Layer:
    """What layers of both kinds share: weights by their short names, residuals and the MLP."""

    def __init__(
        self, model: ModelSpec, weights: Mapping[str, NDArray[Any]], *, prefix: str
    ) -> None:
        self._model = model
        self._weights = {
            name.removeprefix(f"{prefix}."): array
            for name, array in weights.items()
            if name.startswith(f"{prefix}.")
        }

    def finish(self, x: Array, mixed: Array) -> Array:
        """The layer's output from its input ``x [B, n, H]`` and what ``o`` multiplies."""
        weights = self._weights
        x = x + self._branch(mixed @ weights["o.weight"], "attention_out_norm")
        normed = rms_norm(x, weights["post_norm"], self._model.rms_norm_eps)
        return x + self._branch(self._mlp(normed), "mlp_out_norm")

    def _branch(self, x: Array, norm: str) -> Array:
        """What is added to the residual: ``x``, normed where the model has sandwich norms."""
        if not self._model.sandwich_norm:
            return x
        return rms_norm(x, self._weights[norm], self._model.rms_norm_eps)

    def _mlp(self, x: Array) -> Array:
        gate, up = np.split(x @ self._weights["gate_up.weight"], 2, axis=-1)
        return np.asarray((silu(gate) * up) @ self._weights["down.weight"])


class DecoderLayer(_Layer):
    """One decoder layer: grouped-query attention with its cache, then a gated MLP."""

    def __init__(
        self,
        model: ModelSpec,
        op: CachedAttention,
        weights: Mapping[str, NDArray[Any]],
        *,
        prefix: str,
    ) -> None:
        super().__init__(model, weights, prefix=prefix)
        self.op = op
        self.blocks_read: int | None = None
        """Of the last step: docs/attention.md."""

    def empty_states(self, *, batch: int, capacity: int) -> LayerStates:
        """Zeroed states; fp32 caches are held as fp64."""
        return empty_states(self.op, batch=batch, capacity=capacity, fp32_as=np.float64)

    def __call__(self, x: Array, states: LayerStates, step: LayerStep) -> Array:
        """``x [B, n, H]`` after the layer; updates ``states``."""
        batch, rows, _ = x.shape
        heads = self.project(x, step.rotary)
        q, k, v = (part.reshape(batch, rows, -1) for part in heads[:3])
        attended = cached_attention(
            self.op,
            q,
            k,
            v,
            **states,
            past_len=step.step.past_len,
            row_count=step.step.row_count,
            attend_all=step.step.attend_all,
        )
        self.blocks_read = attended.blocks_read
        return self.finish(x, self.gated(attended.y, heads.gate))

    def project(self, x: Array, rotary: Rotation) -> Heads:
        """Queries ``[B, n, Hq, d]``, keys and values ``[B, n, Hkv, d]`` of ``x [B, n, H]``."""
        model, weights = self._model, self._weights
        batch, rows, _ = x.shape
        qkv = rms_norm(x, weights["input_norm"], model.rms_norm_eps) @ weights["qkv.weight"]
        if model.qkv_bias:
            qkv = qkv + weights["qkv.bias"]
        kv_size = model.num_kv_heads * model.head_dim
        parts = np.split(qkv, (model.query_size, model.query_size + kv_size), axis=-1)
        q = parts[0].reshape(batch, rows, model.num_heads, -1)  # [B, n, Hq, d or 2 d]
        k, v = (part.reshape(batch, rows, -1, model.head_dim) for part in parts[1:])
        q, gate = q[..., : model.head_dim], q[..., model.head_dim :]
        if model.qk_norm:
            q = rms_norm(q, weights["q_norm"], model.rms_norm_eps)
            k = rms_norm(k, weights["k_norm"], model.rms_norm_eps)
        return Heads(q=rotary.apply(q), k=rotary.apply(k), v=v, gate=gate)

    def gated(self, attended: Array, gate: Array) -> Array:
        """``attended [B, n, Hq d]``, times the sigmoid of its gate where the model has one."""
        if not self._model.attention_gate:
            return attended
        return attended * sigmoid(gate).reshape(attended.shape)


class DeltaLayer(_Layer):
    """One gated delta net layer with its recurrent state, then a gated MLP."""

    blocks_read: int | None = None

    def __init__(
        self,
        model: ModelSpec,
        op: GatedDeltaRule,
        weights: Mapping[str, NDArray[Any]],
        *,
        prefix: str,
    ) -> None:
        super().__init__(model, weights, prefix=prefix)
        self.op = op

    def empty_states(self, *, batch: int, capacity: int) -> LayerStates:
        """Zeroed states in fp64, whatever the capacity."""
        return delta_states(self.op, batch=batch, fp32_as=np.float64)

    def __call__(self, x: Array, states: LayerStates, step: LayerStep) -> Array:
        """``x [B, n, H]`` after the layer; updates ``states``."""
        weights, op, eps = self._weights, self.op, self._model.rms_norm_eps
        assert step.replay_rows is not None
        normed = rms_norm(x, weights["input_norm"], eps)
        mixed, z = np.split(normed @ weights["in_proj.weight"], [op.channels], axis=-1)
        write, decay = np.split(normed @ weights["gates.weight"], 2, axis=-1)
        rate = np.logaddexp(0.0, decay + weights["dt_bias"])
        y = gated_delta_rule(
            op,
            {
                "x": mixed,
                "beta": sigmoid(write),
                "log_decay": -np.exp(weights["a_log"]) * rate,
            },
            states,
            conv_weight=weights["conv"],
            past_len=step.step.past_len,
            row_count=step.step.row_count,
            replay_rows=step.replay_rows,
        )
        heads = y.reshape(*y.shape[:2], op.num_value_heads, op.value_dim)
        heads = rms_norm(heads, weights["delta_norm"], eps) * silu(z.reshape(heads.shape))
        return self.finish(x, heads.reshape(y.shape))
