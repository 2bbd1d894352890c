"""A checkpoint run in NumPy fp64 by the conventions of its own layout.

Written from the published conventions of the families and apart from selfdraft: it reads names,
shapes and config keys of the hub itself, so that a bundle can be checked against it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

Array = NDArray[np.float64]


class HubModel:
    """The backbone, and the MTP head of either naming, on one whole sequence at a time."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        self.config = config | config.get("text_config", {})
        self.glm = config["architectures"][0].startswith("Glm")
        tensors = safetensors.numpy.load_file(folder / "model.safetensors")
        self.tensors = {
            name.replace("model.language_model.", "model.").replace(
                "language_model.model.", "model."
            ): (array.astype(np.float64))
            for name, array in tensors.items()
        }
        depth = self.config.get("scale_depth")
        self.residual = depth / math.sqrt(self.config["num_hidden_layers"]) if depth else 1.0
        self.embedding = self.tensors["model.embed_tokens.weight"]
        self.head = self.tensors.get("lm_head.weight", self.embedding)

    def backbone(self, ids: list[int]) -> tuple[Array, Array, Array]:
        """Hidden states before and after the final norm ``[T, H]``, logits ``[T, V]``."""
        x = self.embedding[ids] * self.config.get("scale_emb", 1)
        for layer in range(self.config["num_hidden_layers"]):
            x = self._layer(f"model.layers.{layer}.", x)
        normed = self._norm("model.norm.weight", x)
        return x, normed, normed @ self.head.T / self._logit_divisor()

    def _logit_divisor(self) -> float:
        base = self.config.get("dim_model_base")
        return self.config["hidden_size"] / base if base else 1.0

    def mtp(self, ids: list[int]) -> tuple[Array, Array]:
        """Output of the head's norm ``[T - 1, H]`` and logits for token p + 2 in row p."""
        before, after, _ = self.backbone(ids[:-1])
        following = self.embedding[ids[1:]] * self.config.get("scale_emb", 1)
        behind = f"model.layers.{self.config['num_hidden_layers']}."
        if "mtp.fc.weight" in self.tensors:
            embedding = self._norm("mtp.pre_fc_norm_embedding.weight", following)
            hidden = self._norm("mtp.pre_fc_norm_hidden.weight", after)
            joined = np.concatenate([embedding, hidden], axis=-1)
            x = self._layer("mtp.layers.0.", joined @ self.tensors["mtp.fc.weight"].T)
            out = self._norm("mtp.norm.weight", x)
        elif behind + "eh_proj.weight" in self.tensors:
            embedding = self._norm(behind + "enorm.weight", following)
            hidden = self._norm(behind + "hnorm.weight", after)
            joined = np.concatenate([embedding, hidden], axis=-1)
            x = self._layer(behind, joined @ self.tensors[behind + "eh_proj.weight"].T)
            out = self._norm(behind + "shared_head.norm.weight", x)
        else:
            prefix = "model.mtp_layers.0."
            embedding = self._norm(prefix + "token_layernorm.weight", following)
            hidden = self._norm(prefix + "hidden_layernorm.weight", before)
            joined = np.concatenate([hidden, embedding], axis=-1)
            x = self._layer(prefix, joined @ self.tensors[prefix + "input_proj.weight"].T)
            out = self._norm(prefix + "final_layernorm.weight", x)
        return out, out @ self.head.T / self._logit_divisor()

    def _layer(self, prefix: str, x: Array) -> Array:
        added = self._attention(prefix, self._norm(prefix + "input_layernorm.weight", x))
        if self.glm:
            added = self._norm(prefix + "post_self_attn_layernorm.weight", added)
        x = x + self.residual * added
        y = self._norm(prefix + "post_attention_layernorm.weight", x)
        if self.glm:
            gate, up = np.split(self._linear(prefix + "mlp.gate_up_proj", y), 2, axis=-1)
        else:
            gate, up = (self._linear(f"{prefix}mlp.{name}_proj", y) for name in ("gate", "up"))
        added = self._linear(prefix + "mlp.down_proj", gate / (1 + np.exp(-gate)) * up)
        if self.glm:
            added = self._norm(prefix + "post_mlp_layernorm.weight", added)
        return x + self.residual * added

    def _attention(self, prefix: str, x: Array) -> Array:
        length, dim = len(x), self.config["head_dim"]
        heads, shared = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        parts = {}
        for name, count in (("q", heads), ("k", shared), ("v", shared)):
            part = self._linear(f"{prefix}self_attn.{name}_proj", x).reshape(length, count, dim)
            norm = f"{prefix}self_attn.{name}_norm.weight"
            if norm in self.tensors:
                part = self._norm(norm, part)
            part = part if name == "v" else self._rotated(part)
            parts[name] = np.repeat(part, heads // count, axis=1)
        scores = np.einsum("thd,shd->hts", parts["q"], parts["k"]) / math.sqrt(dim)
        scores[:, np.triu(np.ones((length, length), dtype=bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hts,shd->thd", weights, parts["v"]).reshape(length, heads * dim)
        return self._linear(prefix + "self_attn.o_proj", mixed)

    def _rotated(self, x: Array) -> Array:
        angles = np.arange(len(x))[:, None] * self._frequencies()  # [T, d / 2]
        cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
        scaling = self.config.get("rope_scaling") or {}
        if scaling.get("rope_type") == "longrope":
            ratio = (
                self.config["max_position_embeddings"] / scaling["original_max_position_embeddings"]
            )
            size = math.sqrt(
                1 + math.log(ratio) / math.log(scaling["original_max_position_embeddings"])
            )
            cos, sin = cos * size, sin * size
        if self.glm:  # neighbours turn together, the rest of the head stays
            turned = x[..., : 2 * angles.shape[-1]]
            even, odd = turned[..., ::2], turned[..., 1::2]
            pairs = [even * cos - odd * sin, odd * cos + even * sin]
            turned = np.stack(pairs, axis=-1).reshape(turned.shape)
            return np.concatenate([turned, x[..., turned.shape[-1] :]], axis=-1)
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def _frequencies(self) -> Array:
        dim = int(self.config["head_dim"] * self.config.get("partial_rotary_factor", 1))
        plain = 1.0 / self.config["rope_theta"] ** (np.arange(0, dim, 2) / dim)
        scaling = self.config.get("rope_scaling")
        if not scaling:
            return plain
        if scaling["rope_type"] == "linear":
            return plain / scaling["factor"]
        if scaling["rope_type"] == "longrope":
            trained = scaling["original_max_position_embeddings"]
            longer = self.config["max_position_embeddings"] > trained
            return plain / np.array(scaling["long_factor" if longer else "short_factor"])
        waves = 2 * math.pi / plain
        trained = scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        smooth = (trained / waves - low) / (high - low)
        blended = (1 - smooth) * plain / scaling["factor"] + smooth * plain
        divided = np.where(waves > trained / low, plain / scaling["factor"], blended)
        return np.where(waves < trained / high, plain, divided)

    def _linear(self, name: str, x: Array) -> Array:
        y = x @ self.tensors[name + ".weight"].T
        return y + self.tensors[name + ".bias"] if name + ".bias" in self.tensors else y

    def _norm(self, name: str, x: Array) -> Array:
        size = np.mean(x * x, axis=-1, keepdims=True) + self.config["rms_norm_eps"]
        return x / np.sqrt(size) * self.tensors[name]
