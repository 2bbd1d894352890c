"""Contract of ``selfdraft::Int4MatMul`` as data: attributes, shapes, and the order of its sums.

``y = x @ w`` with ``w = code * scale``, codes -8..7, one fp16 scale for ``group_size`` consecutive
inputs of one output. The layout of ``weight`` and ``scale`` is in ``packing``, why it is so in
docs/kernels.md. Letters: docs/shapes.md.

The sum of one element of y has one order, whatever the number of rows (so that rows computed alone
equal rows computed together, bit for bit): products of one segment (the inputs of a chunk that share
a scale) in fp32 by the MMA; times the scale, added to the sum of its slice; the eight slices
added in order; rounded to fp16 once. Chunks go to slices in turn, ``step_chunks`` at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from selfdraft.errors import ConfigError

OP_NAME = "Int4MatMul"
OP_DOMAIN = "selfdraft"
OP_VERSION = 1

GROUP_SIZES = (32, 64, 128)
STRIP_OUTPUTS = 64
"""Outputs that one thread block computes, and whose weights lie together."""
CHUNK_INPUTS = 64
"""Inputs whose codes a thread loads at once: 16 bytes for each tile of 16 outputs."""
TILE_OUTPUTS = 16
"""Outputs of one MMA (m16n8k16, weights on the 16 side)."""
SLICES = 8
"""Partial sums over the inputs that are kept apart until the end."""
CHUNK_BYTES = STRIP_OUTPUTS * CHUNK_INPUTS // 2

INPUTS = (
    "x",  # [..., in_features] fp16
    "weight",  # [strips, chunks, CHUNK_BYTES] int8: packed codes
    "scale",  # [strips, groups, STRIP_OUTPUTS] fp16
)
OUTPUTS = ("y",)
"""``y [..., out_features]`` fp16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4MatMul:
    """Attributes of one node. Raises ``ConfigError`` for values that no body implements."""

    in_features: int
    """K: a multiple of ``group_size``."""
    out_features: int
    """N: any number of outputs."""
    group_size: int

    def __post_init__(self) -> None:
        _require(self.group_size in GROUP_SIZES, "group_size", self.group_size, f"{GROUP_SIZES}")
        _require(self.out_features >= 1, "out_features", self.out_features, "at least 1")
        _require(
            self.in_features >= 1 and self.in_features % self.group_size == 0,
            "in_features",
            self.in_features,
            f"a multiple of group_size {self.group_size}",
        )

    @property
    def strips(self) -> int:
        """Strips of ``STRIP_OUTPUTS`` outputs, the last one padded."""
        return -(-self.out_features // STRIP_OUTPUTS)

    @property
    def step_chunks(self) -> int:
        """Chunks that one slice takes in turn: no group is split between slices."""
        return max(self.group_size // CHUNK_INPUTS, 1)

    @property
    def chunks(self) -> int:
        """Chunks of inputs, padded to whole steps."""
        steps = -(-self.in_features // (CHUNK_INPUTS * self.step_chunks))
        return steps * self.step_chunks

    @property
    def padded_inputs(self) -> int:
        """Inputs that the packed weights hold; those beyond ``in_features`` have code 0."""
        return self.chunks * CHUNK_INPUTS

    @property
    def groups(self) -> int:
        """Scales of one output, padding included (their scale is 0)."""
        return self.padded_inputs // self.group_size

    @property
    def weight_shape(self) -> tuple[int, int, int]:
        """Shape of ``weight``, int8."""
        return (self.strips, self.chunks, CHUNK_BYTES)

    @property
    def scale_shape(self) -> tuple[int, int, int]:
        """Shape of ``scale``, fp16."""
        return (self.strips, self.groups, STRIP_OUTPUTS)

    def onnx_attributes(self) -> dict[str, int]:
        """The attributes by the names that ONNX nodes and plugin fields carry."""
        return {
            "in_features": self.in_features,
            "out_features": self.out_features,
            "group_size": self.group_size,
        }


def _require(holds: bool, name: str, found: object, wanted: str) -> None:
    if not holds:
        raise ConfigError(
            f"Int4MatMul.{name} is {found!r}, must be {wanted}",
            hint="correct the attribute, or export the bundle again",
        )
