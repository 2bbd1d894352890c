"""What each target's graphs may hold: opset, precision, storage of states and matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from selfdraft.manifest import MatrixType, TableType, TargetName
from selfdraft.trt_plugins.cached_attention.contract import KvDtype
from selfdraft.trt_plugins.int4_matmul.contract import GROUP_SIZES


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One kind of engine."""

    name: TargetName
    opset: int
    plain: Literal["fp32", "fp16"]
    """Storage of matrices that are not quantised, and of activations."""
    matrix_types: tuple[MatrixType, ...]
    """Storage that the target's operators multiply with."""
    kv_types: tuple[KvDtype, ...]
    """Storage of the KV cache, the default first."""
    table_types: tuple[TableType, ...]
    """Storage of the embedding that the target's graphs look up."""
    int4_blocks: tuple[int, ...]
    """Inputs that may share a scale, the default first."""
    max_candidates: int
    tensorrt: tuple[int, int] | None = None
    """Oldest TensorRT that must parse the graphs; None: custom ops are function bodies."""
    draft_vocab: int | None = None
    """Tokens of the draft head where the export says nothing; None: the LM head drafts."""

    @property
    def has_plugins(self) -> bool:
        """Whether custom operators are nodes for a plugin library."""
        return self.tensorrt is not None

    @property
    def int4_default(self) -> int:
        """Inputs that share a scale where the export says nothing."""
        return self.int4_blocks[0]


ORIN_DRAFT_VOCAB = 8192
"""A quantised draft head of its own: engines cannot share the LM head, and it must not be held twice."""
ORIN_OPSET = 18
TRT_MAX_TOPK = 3840
"""TensorRT's TopK takes no more."""


def _orin(name: TargetName, tensorrt: tuple[int, int]) -> Target:
    return Target(
        name=name,
        opset=ORIN_OPSET,
        plain="fp16",
        matrix_types=("fp16", "int4"),
        table_types=("fp16",),
        kv_types=("fp16", "int8"),
        int4_blocks=tuple(sorted(GROUP_SIZES, reverse=True)),
        max_candidates=TRT_MAX_TOPK,
        tensorrt=tensorrt,
        draft_vocab=ORIN_DRAFT_VOCAB,
    )


TARGETS: dict[TargetName, Target] = {
    "cpu": Target(
        name="cpu",
        opset=21,
        plain="fp32",
        matrix_types=("fp32", "bf16", "fp16", "int4", "int8"),
        table_types=("fp32", "bf16", "fp16", "int8"),
        kv_types=("fp32", "int8"),
        int4_blocks=(32, 16, 64, 128),
        max_candidates=4096,
    ),
    "orin-jp6": _orin("orin-jp6", (10, 3)),
    "orin-jp7": _orin("orin-jp7", (10, 16)),
}
