"""How finely matrices are really stored: levels that can be told apart, and distance from a source."""

from __future__ import annotations

import numpy as np

from selfdraft.export.weight_reader import Array, WeightReader
from selfdraft.manifest import MatrixType, ModelSpec

RUN = 16
"""Consecutive inputs whose distinct values are counted."""
SAMPLED_COLUMNS = 64
LEAST_LEVELS: dict[MatrixType, float] = {
    "fp32": 14.0,
    "fp16": 14.0,
    "bf16": 14.0,
    "int8": 12.5,
    "int4": 7.0,
}
"""Distinct values of a run below which a matrix is coarser than its type. Of 16 draws from a normal
law 8 to 9 differ at 4 bits, 5 to 6 at 3 bits, about 3 at 2 bits, more than 15 at 8 bits."""


def head_matrices(spec: ModelSpec) -> tuple[str, ...]:
    """Names of the MTP head's own matrices."""
    layer = ("qkv", "o", "gate_up", "down")
    return ("mtp.proj.weight", *(f"mtp.layer.{name}.weight" for name in layer))


def distinct_levels(values: Array) -> float:
    """Mean number of distinct values in ``RUN`` consecutive inputs of a column of ``[in, out]``."""
    columns = np.linspace(0, values.shape[1] - 1, SAMPLED_COLUMNS).astype(int)
    kept = values[: len(values) // RUN * RUN, np.unique(columns)]
    runs = np.sort(kept.T.reshape(-1, RUN), axis=1)
    return float((np.diff(runs, axis=1) != 0).sum(axis=1).mean() + 1)


def coarse_matrices(reader: WeightReader, types: dict[str, MatrixType]) -> dict[str, float]:
    """Matrices that hold fewer levels than their type promises, with how many there are."""
    found = {name: distinct_levels(reader.tensor(name)) for name in types}
    return {name: levels for name, levels in found.items() if levels < LEAST_LEVELS[types[name]]}


def distance(stored: Array, source: Array) -> float:
    """Error of a stored matrix relative to the size of its source."""
    return float(np.linalg.norm(stored - source) / max(float(np.linalg.norm(source)), 1e-30))
