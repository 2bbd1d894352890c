"""Bytes of weights by part, as the exporter lays them out (docs/architecture.md, Weights)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from selfdraft.errors import ConfigError
from selfdraft.jetson.planner.geometry import Geometry, Matrix
from selfdraft.manifest import Precision, TableType, TargetName

WeightType = Literal["fp32", "fp16", "bf16", "int4", "int8"]
BLOCKS = (128, 64, 32, 16)
FLOAT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
INT8_SCALE_BYTES = 4
ID_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """How weights are stored."""

    layers: WeightType
    """The layers' matrices."""
    head: WeightType
    """The LM head."""
    vectors: Literal["fp32", "fp16"]
    """Norms, biases and the scales of int4 blocks; the embedding table unless ``table`` says."""
    block: int | None = None
    """Inputs that share a scale, of int4."""
    mtp: WeightType | None = None
    """The MTP head's matrices; None: as ``layers``."""
    draft: WeightType | None = None
    """A trimmed draft head; None: as ``layers``."""
    table: TableType | None = None
    """The embedding table; None: as ``vectors``."""

    def __post_init__(self) -> None:
        kinds = (self.layers, self.head, self.mtp, self.draft)
        if ("int4" in kinds) != (self.block is not None):
            raise ValueError(f"int4_block {self.block} with {self.layers} and {self.head}")

    def matrix_bytes(self, matrix: Matrix, kind: WeightType) -> int:
        """Bytes of one matrix, scales included."""
        if kind == "int8":
            width = next((size for size in BLOCKS if matrix.inputs % size == 0), matrix.inputs)
            return matrix.size + matrix.inputs // width * matrix.outputs * INT8_SCALE_BYTES
        if kind != "int4":
            return matrix.size * FLOAT_BYTES[kind]
        assert self.block is not None
        scales = matrix.inputs // self.block * matrix.outputs
        return matrix.size // 2 + scales * FLOAT_BYTES[self.vectors]

    def layer_bytes(self, matrices: Iterable[Matrix]) -> int:
        """Bytes of matrices of layers."""
        return sum(self.matrix_bytes(matrix, self.layers) for matrix in matrices)

    def backbone_bytes(self, geometry: Geometry) -> int:
        """Bytes of all layers, their vectors included."""
        gates = self.layers if self.layers in ("fp16", "bf16") else self.vectors
        return (
            self.layer_bytes(geometry.backbone())
            + sum(self.matrix_bytes(matrix, gates) for matrix in geometry.gates())
            + geometry.backbone_vectors() * FLOAT_BYTES[self.vectors]
        )

    def mtp_bytes(self, matrices: Iterable[Matrix]) -> int:
        """Bytes of matrices of the MTP head."""
        return sum(self.matrix_bytes(matrix, self.mtp or self.layers) for matrix in matrices)

    def draft_bytes(self, geometry: Geometry) -> int:
        """Bytes of what a draft is chosen with: a trimmed head, else the LM head."""
        own = self.draft or self.layers
        return self.matrix_bytes(
            geometry.draft_head, self.head if geometry.draft_vocab_size is None else own
        )

    def table_bytes(self, geometry: Geometry) -> int:
        """Bytes of the embedding table, with the scales of its rows."""
        size = geometry.head.size
        if self.table == "int8":
            return size + geometry.vocab_size * INT8_SCALE_BYTES
        return size * FLOAT_BYTES[self.table or self.vectors]

    @property
    def label(self) -> str:
        """For people: ``int4 g128, LM head fp16``."""
        layers = f"int4 g{self.block}" if self.layers == "int4" else self.layers
        return layers if self.head == self.layers else f"{layers}, LM head {self.head}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeights:
    """A bundle's own weights: how they are stored, and their bytes by part as its files have them."""

    storage: Storage
    part_bytes: dict[str, int]


def stored_as(precision: Precision, *, target: TargetName = "cpu") -> Storage:
    """How a bundle is stored. Imported 4-bit matrices may hold more; norms of a board's may."""
    on_cpu = target == "cpu"
    kinds = {precision.weights, precision.lm_head, precision.mtp}
    draft: WeightType = precision.lm_head if on_cpu else "int4"  # what boards draft with
    return Storage(
        layers=precision.weights,
        head=precision.lm_head,
        mtp=precision.mtp,
        draft=draft,
        table=precision.embedding,
        vectors="fp32" if on_cpu else "fp16",
        block=precision.int4_block if "int4" in {*kinds, draft} else None,
    )


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

    A tied LM head is the embedding table where both are of the plain type.
    """
    vector = FLOAT_BYTES[storage.vectors]
    parts = {
        "embedding": storage.table_bytes(geometry),
        "backbone": storage.backbone_bytes(geometry) + geometry.hidden_size * vector,
    }
    table = storage.table or storage.vectors
    if not (geometry.tied_head and storage.head == table == storage.vectors):
        parts["lm_head"] = storage.matrix_bytes(geometry.head, storage.head)
    if geometry.mtp:
        norms = geometry.layer_vectors() + 3 * geometry.hidden_size
        parts["mtp"] = storage.mtp_bytes(geometry.mtp_matrices()) + norms * vector
    if geometry.mtp and geometry.draft_vocab_size is not None:
        ids = geometry.draft_vocab_size * ID_BYTES
        parts["draft_head"] = storage.draft_bytes(geometry) + ids
    return parts
