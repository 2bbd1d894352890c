"""Sizes of a decoder as far as they decide bytes and arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from selfdraft.manifest import ModelSpec
from selfdraft.recurrent import LOG_ROWS, DeltaSpec

STATE_LEN_BYTES = 8
"""One length for all recurrent states of a sequence."""


class Matrix(NamedTuple):
    """A weight matrix ``[inputs, outputs]``."""

    inputs: int
    outputs: int

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.inputs * self.outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    """Layers with a recurrent state in place of a KV cache (Gated DeltaNet of Qwen3-Next).

    The state is fp32 ``[value_heads, head_dim, value_dim]`` in each layer, with a log of the newest
    rows beside it (docs/gated_delta.md).
    """

    num_layers: int
    key_heads: int
    value_heads: int
    head_dim: int
    """Of the keys."""
    value_dim: int | None = None
    """Of the values; None: as the keys'."""
    taps: int = 4
    """Inputs of the convolution."""

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """Projections of one layer: q, k, v, z joined; output."""
        keys, values = self.key_heads * self.head_dim, self.value_size
        return Matrix(hidden, 2 * keys + 2 * values), Matrix(values, hidden)

    def gates(self, hidden: int) -> Matrix:
        """Write strength and decay of one layer, which are never quantised."""
        return Matrix(hidden, 2 * self.value_heads)

    @property
    def channels(self) -> int:
        """Channels of the convolution: q, k and v."""
        return 2 * self.key_heads * self.head_dim + self.value_size

    @property
    def vectors(self) -> int:
        """Elements of one layer's filters, decay rates and norm."""
        width = self.value_dim or self.head_dim
        return self.channels * self.taps + 2 * self.value_heads + width

    @property
    def state_bytes(self) -> int:
        """Recurrent state of all layers, which every step reads."""
        return self.num_layers * self.value_size * self.head_dim * 4

    def kept_bytes(self, *, row_bytes: int) -> dict[str, int]:
        """All that is kept for one sequence, by kind: states and gates of the log, and the log's rows.

        ``row_bytes``: of one value of those (fp16 on a board).
        """
        gates = LOG_ROWS * 2 * self.value_heads * 4
        rows = (self.taps - 1 + LOG_ROWS) * self.channels * row_bytes
        recurrent = self.state_bytes + self.num_layers * gates + STATE_LEN_BYTES
        return {"recurrent": recurrent, "conv": self.num_layers * rows}

    @property
    def value_size(self) -> int:
        """Columns of v."""
        return self.value_heads * (self.value_dim or self.head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """A dense decoder, with or without an MTP head; ``num_layers`` counts all layers."""

    name: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tied_head: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    gated_query: bool = False
    """The query projection also makes a gate of its own size (Qwen3-Next, Qwen3.5)."""
    linear: LinearAttention | None = None
    mtp: bool = False
    draft_vocab_size: int | None = None
    """Rows of a trimmed draft head; None: the LM head drafts."""

    @property
    def num_attention_layers(self) -> int:
        """Layers with a KV cache; the MTP layer is not among them."""
        return self.num_layers - (self.linear.num_layers if self.linear else 0)

    @property
    def key_size(self) -> int:
        """Columns of k, and of v."""
        return self.num_kv_heads * self.head_dim

    @property
    def head(self) -> Matrix:
        """The LM head."""
        return Matrix(self.hidden_size, self.vocab_size)

    @property
    def draft_head(self) -> Matrix:
        """What a draft is chosen with: the trimmed head, else the LM head."""
        return Matrix(self.hidden_size, self.draft_vocab_size or self.vocab_size)

    @property
    def projection(self) -> Matrix:
        """The MTP head's projection of embedding and hidden state."""
        return Matrix(2 * self.hidden_size, self.hidden_size)

    def attention_layer(self) -> tuple[Matrix, ...]:
        """Matrices of a layer with a KV cache, in the bundle's order."""
        queries = self.num_heads * self.head_dim
        gate = queries if self.gated_query else 0
        return (
            Matrix(self.hidden_size, queries + gate + 2 * self.key_size),
            Matrix(queries, self.hidden_size),
            *self._mlp(),
        )

    def backbone(self) -> Iterator[Matrix]:
        """Matrices of all layers, without embedding, LM head and the gates of recurrent layers."""
        for _ in range(self.num_attention_layers):
            yield from self.attention_layer()
        if self.linear:
            for _ in range(self.linear.num_layers):
                yield from self.linear.matrices(self.hidden_size)
                yield from self._mlp()

    def mtp_matrices(self) -> tuple[Matrix, ...]:
        """Matrices of the MTP head, without what it drafts with."""
        return (self.projection, *self.attention_layer()) if self.mtp else ()

    def gates(self) -> Iterator[Matrix]:
        """Matrices of layers that are never quantised."""
        if self.linear:
            for _ in range(self.linear.num_layers):
                yield self.linear.gates(self.hidden_size)

    def layer_vectors(self) -> int:
        """Elements of norms and biases of one layer with a KV cache."""
        queries = self.num_heads * (2 if self.gated_query else 1)
        bias = (queries + 2 * self.num_kv_heads) * self.head_dim
        return (
            2 * self.hidden_size
            + (bias if self.qkv_bias else 0)
            + (2 * self.head_dim if self.qk_norm else 0)
        )

    def backbone_vectors(self) -> int:
        """Elements of norms, biases and filters of all layers."""
        vectors = self.num_attention_layers * self.layer_vectors()
        if self.linear:
            vectors += self.linear.num_layers * (2 * self.hidden_size + self.linear.vectors)
        return vectors

    def backbone_parameters(self) -> int:
        """Weights that every token of a prompt passes through: the layers' matrices."""
        return sum(matrix.size for matrix in (*self.backbone(), *self.gates()))

    def _mlp(self) -> tuple[Matrix, ...]:
        return (
            Matrix(self.hidden_size, 2 * self.intermediate_size),
            Matrix(self.intermediate_size, self.hidden_size),
        )


def geometry_from_spec(spec: ModelSpec, *, name: str) -> Geometry:
    """The sizes that a manifest or a checkpoint states."""
    return Geometry(
        name=name,
        hidden_size=spec.hidden_size,
        num_layers=spec.num_layers,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        intermediate_size=spec.intermediate_size,
        vocab_size=spec.vocab_size,
        tied_head=spec.tied_head,
        qkv_bias=spec.qkv_bias,
        qk_norm=spec.qk_norm,
        gated_query=spec.attention_gate,
        linear=_linear_attention(spec.delta) if spec.delta else None,
        mtp=spec.mtp is not None,
        draft_vocab_size=spec.mtp.draft_vocab_size if spec.mtp else None,
    )


def _linear_attention(delta: DeltaSpec) -> LinearAttention:
    return LinearAttention(
        num_layers=len(delta.layers),
        key_heads=delta.num_key_heads,
        value_heads=delta.num_value_heads,
        head_dim=delta.key_dim,
        value_dim=delta.value_dim,
        taps=delta.taps,
    )
