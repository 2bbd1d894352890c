"""Activation-aware scaling: how far each input of a matrix is scaled, found on a text.

Source: AWQ, arXiv 2306.00978 §3.2. Only matrices that a norm feeds are scaled, since the norm takes
the inverse for free; all others are searched with their activations as weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from selfdraft.export.int4 import quantize
from selfdraft.export.weight_plan import WeightItem, WeightsPlan
from selfdraft.export.weight_reader import WeightReader
from selfdraft.export.weight_tuning import Tuning

EXPONENTS = (0.0, 0.25, 0.5, 0.75)
"""Tried powers of the activations' size; 0 scales nothing."""
SAMPLED_COLUMNS = 512
"""Outputs of a matrix that a search looks at, evenly spread."""
NORMS = {
    "qkv.weight": ("input_norm",),
    "in_proj.weight": ("input_norm",),
    "gate_up.weight": ("post_norm",),
}
BESIDE = {"in_proj.weight": "gates.weight"}
"""A matrix that the same norm feeds: it takes the same factors, which cost it nothing in floats."""
FLOATS = ("fp32", "fp16", "bf16")
PROJECTION = "mtp.proj.weight"
LEAST_ACTIVATION = 1e-6

Vector = NDArray[np.float32]


class ActivationSums:
    """Mean square and mean size of every input of the matrices that a pass told of."""

    def __init__(self) -> None:
        self._squares: dict[str, Vector] = {}
        self._sizes: dict[str, Vector] = {}
        self._rows: dict[str, int] = {}

    def __call__(self, name: str, inputs: Tensor) -> None:
        """Add ``inputs [..., in]`` of matrix ``name``."""
        rows = inputs.reshape(-1, inputs.shape[-1])
        squares, sizes = rows.pow(2).sum(0).numpy(), rows.abs().sum(0).numpy()
        self._squares[name] = self._squares.get(name, 0) + squares
        self._sizes[name] = self._sizes.get(name, 0) + sizes
        self._rows[name] = self._rows.get(name, 0) + len(rows)

    def mean_squares(self) -> dict[str, Vector]:
        """``[in]`` by matrix."""
        return {name: total / np.float32(self._rows[name]) for name, total in self._squares.items()}

    def mean_sizes(self) -> dict[str, Vector]:
        """``[in]`` by matrix."""
        return {name: total / np.float32(self._rows[name]) for name, total in self._sizes.items()}


def search_tuning(plan: WeightsPlan, reader: WeightReader, sums: ActivationSums) -> Tuning:
    """Importance of all inputs, and scales of the int4 matrices that a norm feeds."""
    squares, sizes = sums.mean_squares(), sums.mean_sizes()
    factors: dict[str, Vector] = {}
    divisors: dict[str, Vector] = {}
    forms = {item.rule.target: item.form for item in plan.items}
    for item in plan.items:
        target = item.rule.target
        norms = _norms_before(target, plan)
        beside = _beside(target)
        if item.form != "int4" or target not in sizes or not norms:
            continue
        if beside is not None and forms[beside] not in FLOATS:
            continue
        found = _best_factors(item, reader.tensor(target), sizes[target], squares[target])
        if found is None:
            continue
        factors |= {name: found for name in (target, beside) if name is not None}
        for norm, part in zip(norms, np.split(found, len(norms)), strict=True):
            divisors[norm] = part
    return Tuning(mean_squares=squares, row_factors=factors, norm_divisors=divisors)


def _beside(target: str) -> str | None:
    for ending, other in BESIDE.items():
        if target.endswith(f".{ending}"):
            return target.removesuffix(ending) + other
    return None


def _norms_before(target: str, plan: WeightsPlan) -> tuple[str, ...]:
    """Norms whose outputs, side by side, are what a matrix multiplies."""
    if target == PROJECTION:
        assert plan.spec.mtp is not None
        pair = ("mtp.hidden_norm", "mtp.embedding_norm")
        return pair if plan.spec.mtp.concat == "hidden_first" else pair[::-1]
    for ending, norms in NORMS.items():
        if target.endswith(f".{ending}"):
            return tuple(target.removesuffix(ending) + norm for norm in norms)
    return ()


def _best_factors(
    item: WeightItem, matrix: NDArray[np.float32], sizes: Vector, squares: Vector
) -> Vector | None:
    """The scale with the least weighted error on a sample of outputs; None: none is best."""
    assert item.block is not None
    stride = max(1, matrix.shape[1] // SAMPLED_COLUMNS)
    sample = np.ascontiguousarray(matrix[:, ::stride])
    best: tuple[float, Vector | None] = (np.inf, None)
    for exponent in EXPONENTS:
        factors = _factors(sizes, exponent)
        error = _weighted_error(sample, factors, squares, item.block)
        if error < best[0]:
            best = (error, factors if exponent else None)
    return best[1]


def _factors(sizes: Vector, exponent: float) -> Vector:
    """``sizes ** exponent``, its largest and smallest balanced around 1."""
    powers = np.maximum(sizes, LEAST_ACTIVATION) ** exponent
    return np.asarray(powers / np.sqrt(powers.max() * powers.min()), dtype=np.float32)


def _weighted_error(
    sample: NDArray[np.float32], factors: Vector, squares: Vector, block: int
) -> float:
    importance = squares / factors**2
    codes, scales = quantize(sample * factors[:, None], block, importance=importance)
    values = codes * np.repeat(scales, block, axis=0) / factors[:, None]
    return float((((values - sample) ** 2).sum(axis=1, dtype=np.float64) * squares).sum())
