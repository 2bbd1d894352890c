"""Bytes of weights by part, as the exporter lays them out (docs/architecture.md, Weights)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from selfdraft.errors import ConfigError
from selfdraft.jetson.planner.geometry import Geometry, Matrix

WeightType = Literal["fp32", "fp16", "int4"]
BLOCKS = (128, 64, 32, 16)
FLOAT_BYTES = {"fp32": 4, "fp16": 2}
ID_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """How weights are stored."""

    layers: WeightType
    """The layers' matrices, the MTP head's and a trimmed draft head."""
    head: WeightType
    """The LM head."""
    vectors: Literal["fp32", "fp16"]
    """Norms, biases, the embedding table and the scales of int4 blocks."""
    block: int | None = None
    """Inputs that share a scale, of int4."""

    def __post_init__(self) -> None:
        if ("int4" in (self.layers, self.head)) != (self.block is not None):
            raise ValueError(f"int4_block {self.block} with {self.layers} and {self.head}")

    def matrix_bytes(self, matrix: Matrix, kind: WeightType) -> int:
        """Bytes of one matrix, scales included."""
        if kind != "int4":
            return matrix.size * FLOAT_BYTES[kind]
        assert self.block is not None
        scales = matrix.inputs // self.block * matrix.outputs
        return matrix.size // 2 + scales * FLOAT_BYTES[self.vectors]

    def layer_bytes(self, matrices: Iterable[Matrix]) -> int:
        """Bytes of matrices of layers."""
        return sum(self.matrix_bytes(matrix, self.layers) for matrix in matrices)

    @property
    def label(self) -> str:
        """For people: ``int4 g128, LM head fp16``."""
        layers = f"int4 g{self.block}" if self.layers == "int4" else self.layers
        return layers if self.head == self.layers else f"{layers}, LM head {self.head}"


def cpu_storage(weights: Literal["fp32", "int4"], block: int | None) -> Storage:
    """What the exporter writes for the ``cpu`` target: an int4 LM head, fp32 elsewhere."""
    return Storage(layers=weights, head=weights, vectors="fp32", block=block)


def device_storage(
    geometry: Geometry, *, weights: Literal["fp16", "int4"], head: Literal["fp16", "int4"]
) -> Storage:
    """What an Orin runs: fp16, or int4 in the largest blocks up to 128 that fit the model."""
    int4 = "int4" in (weights, head)
    return Storage(
        layers=weights, head=head, vectors="fp16", block=fit_block(geometry, 128) if int4 else None
    )


def fit_block(geometry: Geometry, wanted: int) -> int:
    """The largest block up to ``wanted`` that divides the inputs of every matrix.

    Raises ``ConfigError`` for a model whose sizes fit none.
    """
    matrices = {*geometry.backbone(), *geometry.mtp_matrices(), geometry.head}
    for block in (size for size in BLOCKS if size <= wanted):
        if all(matrix.inputs % block == 0 for matrix in matrices):
            return block
    raise ConfigError(
        f"{geometry.name} has matrices whose inputs are no multiple of {BLOCKS[-1]}",
        hint="plan with --weights fp16",
    )


def weight_bytes(geometry: Geometry, storage: Storage) -> dict[str, int]:
    """Bytes of embedding, backbone, lm_head, mtp and draft_head (those that exist).

    A tied LM head is the embedding table, unless the two are stored differently.
    """
    vector = FLOAT_BYTES[storage.vectors]
    layers = geometry.num_layers * geometry.layer_vectors() + geometry.hidden_size
    parts = {
        "embedding": geometry.head.size * vector,
        "backbone": storage.layer_bytes(geometry.backbone()) + layers * vector,
    }
    if not geometry.tied_head or storage.head != storage.vectors:
        parts["lm_head"] = storage.matrix_bytes(geometry.head, storage.head)
    if geometry.mtp:
        norms = geometry.layer_vectors() + 3 * geometry.hidden_size
        parts["mtp"] = storage.layer_bytes(geometry.mtp_matrices()) + norms * vector
    if geometry.mtp and geometry.draft_vocab_size is not None:
        ids = geometry.draft_vocab_size * ID_BYTES
        parts["draft_head"] = storage.layer_bytes([geometry.draft_head]) + ids
    return parts
