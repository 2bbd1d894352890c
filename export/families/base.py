"""What every family gives: its facts, and the plan that a checkpoint yields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from selfdraft.manifest import ModelSpec

Layout = Literal["vector", "matrix", "table"]
"""How sources become a stored tensor: vectors are joined; matrices ``[out, in]`` are joined
along out and stored transposed, ``[in, out]``; a table is stored as it is."""
BiasRule = Literal["always", "by_tensors"]
MtpNaming = Literal["mimo", "qwen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRule:
    """How one tensor of the bundle is made from tensors of the checkpoint."""

    target: str
    sources: tuple[str, ...]
    layout: Layout
    source_shapes: tuple[tuple[int, ...], ...]
    """Shapes that the sources must have."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the target as stored."""
        joined = sum(shape[0] for shape in self.source_shapes)
        rest = self.source_shapes[0][1:]
        return (*rest, joined) if self.layout == "matrix" else (joined, *rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What sets one family apart from the common decoder layer (``decoder.py``).

    The defaults are those of its configuration class, for keys that config.json leaves out.
    """

    name: str
    architecture: str
    model_type: str
    qkv_bias: BiasRule
    """``always``: q, k and v have a bias; ``by_tensors``: all or none, as the tensors say."""
    qk_norm: bool
    sliding_window_flag: bool
    """``sliding_window`` counts only with ``use_sliding_window: true``."""
    rope_theta: float
    rms_norm_eps: float
    max_position_embeddings: int
    mtp_naming: MtpNaming
    """Names that are expected when config.json promises an MTP head that is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """A checkpoint that was understood: geometry, and where every tensor goes."""

    spec: ModelSpec
    rules: tuple[WeightRule, ...]
    """Targets of docs/architecture.md (Weights), and ``embedding``."""
    ignored: dict[str, str]
    """Tensors left out, with the reason."""
    notes: tuple[str, ...]
    architecture: str
    max_context: int
    """Positions that the config allows."""
