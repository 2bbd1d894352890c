"""What every family gives: its facts, and the plan that a checkpoint yields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from selfdraft.manifest import AttentionSpec, ModelSpec

Layout = Literal["vector", "matrix", "table", "channels"]
"""How sources become a stored tensor: vectors are joined; matrices ``[out, in]`` are joined
along out and stored transposed, ``[in, out]``; a table is stored as it is; filters of channels
``[channels, 1, taps]`` as ``[channels, taps]``."""
BiasRule = Literal["always", "by_tensors"]
MtpNaming = Literal["mimo", "qwen", "deepseek"]
RotaryForm = Literal["half", "interleaved"]
"""Pairs that turn together: (i, i + r/2) or (2i, 2i + 1) of the r rotated dimensions."""
HeadOrder = tuple[int, ...]
"""For each dimension of a head as stored, the dimension of the checkpoint that it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRule:
    """How one tensor of the bundle is made from tensors of the checkpoint."""

    target: str
    sources: tuple[str, ...]
    layout: Layout
    source_shapes: tuple[tuple[int, ...], ...]
    """Shapes that the sources must have."""
    factor: float = 1.0
    """The target is the joined sources times this."""
    offset: float = 0.0
    """Added to every value first (norms that store w - 1)."""
    head_orders: tuple[HeadOrder | None, ...] = ()
    """For each source, the order of the outputs inside each head; empty: as they are."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the target as stored."""
        joined = sum(shape[0] for shape in self.source_shapes)
        rest = self.source_shapes[0][1:]
        if self.layout == "channels":
            return (joined, rest[-1])
        return (*rest, joined) if self.layout == "matrix" else (joined, *rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What sets one family apart from the common decoder layer (``decoder.py``).

    The defaults are those of its configuration class, for keys that config.json leaves out.
    """

    name: str
    architectures: tuple[str, ...]
    model_types: tuple[str, ...]
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
    tied_default: bool = False
    """``tie_word_embeddings`` where config.json is silent."""
    norm_offset: float = 0.0
    """1 where norms are stored as w - 1."""
    sandwich_norm: bool = False
    """Attention and MLP have a norm on their output too, before the residual."""
    fused_gate_up: bool = False
    """``gate_up_proj`` holds gate and up one after the other."""
    rotary_form: RotaryForm = "half"
    partial_rotary: float | None = None
    """Default of ``partial_rotary_factor``; None: only 1 is known."""
    scalings: bool = False
    """The µP factors of MiniCPM: ``scale_emb``, ``scale_depth``, ``dim_model_base``."""
    attention_gate: bool = False
    """``q_proj`` makes, behind each head's query, a gate for that head's output."""
    hybrid: bool = False
    """Some layers are gated delta nets (``linear_attn``)."""
    sparse_config: bool = False
    """``sparse_config`` asks for block-sparse attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStyle:
    """What the rules of a decoder layer need beside its sizes."""

    norm_offset: float = 0.0
    sandwich_norm: bool = False
    fused_gate_up: bool = False
    head_order: HeadOrder | None = None
    """Of queries, keys and their norms; None: as in the checkpoint."""
    residual_factor: float = 1.0
    """Factor on what attention and MLP add to the residual."""
    embedding_factor: float = 1.0
    logit_factor: float = 1.0


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
    sparse: AttentionSpec | None = None
    """Attention that the checkpoint was trained for, where config.json asks for a sparse one."""
    disputed_tap: bool = False
    """Public engines disagree on the tap of the MTP head: worth a measurement."""
