"""Layers of the reference backend in NumPy fp64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.manifest import ModelSpec
from selfdraft.runtime.backend import IntArray, Step
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.cached_attention.oracle import cached_attention
from selfdraft.trt_plugins.cached_attention.states import LayerStates

Array = NDArray[np.float64]


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """``x * weight / sqrt(mean(x²) + eps)`` over the last axis."""
    mean_square = np.einsum("...i,...i->...", x, x)[..., None] / x.shape[-1]
    return np.asarray(x / np.sqrt(mean_square + eps) * weight)


def silu(x: Array) -> Array:
    """``x * sigmoid(x)``, without overflow for large negative x."""
    return np.asarray(x * 0.5 * (1.0 + np.tanh(0.5 * x)))


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


class DecoderLayer:
    """One decoder layer: grouped-query attention with its cache, then a gated MLP."""

    def __init__(
        self,
        model: ModelSpec,
        op: CachedAttention,
        weights: Mapping[str, NDArray[Any]],
        *,
        prefix: str,
    ) -> None:
        self._model = model
        self._weights = {
            name.removeprefix(f"{prefix}."): array
            for name, array in weights.items()
            if name.startswith(f"{prefix}.")
        }
        self.op = op
        self.blocks_read: int | None = None
        """Of the last step: docs/attention.md."""

    def __call__(self, x: Array, states: LayerStates, step: Step, rotary: Rotation) -> Array:
        """``x [B, n, H]`` after the layer; updates ``states``."""
        batch, rows, _ = x.shape
        q, k, v = (heads.reshape(batch, rows, -1) for heads in self.project(x, rotary))
        attended = cached_attention(
            self.op,
            q,
            k,
            v,
            **states,
            past_len=step.past_len,
            row_count=step.row_count,
            attend_all=step.attend_all,
        )
        self.blocks_read = attended.blocks_read
        return self.finish(x, attended.y)

    def project(self, x: Array, rotary: Rotation) -> tuple[Array, Array, Array]:
        """Queries ``[B, n, Hq, d]``, keys and values ``[B, n, Hkv, d]`` of ``x [B, n, H]``."""
        model, weights = self._model, self._weights
        batch, rows, _ = x.shape
        qkv = rms_norm(x, weights["input_norm"], model.rms_norm_eps) @ weights["qkv.weight"]
        if model.qkv_bias:
            qkv = qkv + weights["qkv.bias"]
        heads = qkv.reshape(batch, rows, -1, model.head_dim)  # [B, n, Hq + 2 Hkv, d]
        q, k, v = np.split(heads, (model.num_heads, model.num_heads + model.num_kv_heads), axis=2)
        if model.qk_norm:
            q = rms_norm(q, weights["q_norm"], model.rms_norm_eps)
            k = rms_norm(k, weights["k_norm"], model.rms_norm_eps)
        return rotary.apply(q), rotary.apply(k), v

    def finish(self, x: Array, attended: Array) -> Array:
        """The layer's output from its input ``x [B, n, H]`` and ``attended [B, n, Hq d]``."""
        weights = self._weights
        x = x + self._branch(attended @ weights["o.weight"], "attention_out_norm")
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
