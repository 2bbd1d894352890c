"""How the embedding table is stored: names and types of its tensors, and what its rows are.

int8 rows share one scale each: row = codes * scale. Nothing is multiplied with codes: a lookup widens
the rows that it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.bf16 import fp32_from_bf16
from selfdraft.manifest import TableType

TABLE, SCALE = "embedding", "embedding_scale"
"""Inputs of the graphs: the table ``[V, H]``, and for int8 the scale of each row ``[V]``."""
INPUT_TYPES: dict[TableType, str] = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "int8": "int8",
}
"""Type of the graphs' table."""
_STORED: dict[TableType, dict[str, str]] = {
    "fp32": {TABLE: "embedding"},
    "fp16": {TABLE: "embedding"},
    "bf16": {TABLE: "embedding.bf16"},
    "int8": {TABLE: "embedding.int8", SCALE: "embedding.scale"},
}


def stored_names(kind: TableType) -> dict[str, str]:
    """Tensor of the embedding file behind each graph input."""
    return dict(_STORED[kind])


def fp32_rows(parts: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Rows ``[n, H]`` from the tensors of an embedding file, cut to those rows."""
    if "embedding.bf16" in parts:
        return fp32_from_bf16(parts["embedding.bf16"])
    if "embedding.int8" in parts:
        scales = parts["embedding.scale"].astype(np.float32)[:, None]
        return parts["embedding.int8"].astype(np.float32) * scales
    return parts["embedding"].astype(np.float32, copy=False)
