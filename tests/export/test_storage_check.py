"""Levels that a matrix really has, whatever its type says."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from selfdraft.export.storage_check import LEAST_LEVELS, coarse_matrices, distance, distinct_levels
from selfdraft.manifest import MatrixType


def gaussian(seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(256, 96)).astype(np.float32)


def rounded(values: NDArray[np.float32], bits: int, block: int = 32) -> NDArray[np.float32]:
    """Symmetric rounding of groups to ``bits``."""
    groups = values.reshape(-1, block, values.shape[1])
    scale = np.abs(groups).max(axis=1, keepdims=True) / (2 ** (bits - 1) - 1)
    return (np.rint(groups / scale) * scale).reshape(values.shape).astype(np.float32)


def bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("kind", "fine", "coarse"), [("fp32", 16, 4), ("int8", 8, 4), ("int4", 4, 3)]
)
def test_types_are_told_from_coarser_ones(
    seed: int, kind: MatrixType, fine: int, coarse: int
) -> None:
    values = gaussian(seed)
    good = bf16(values) if fine == 16 else rounded(values, fine, block=128)
    assert distinct_levels(good) > LEAST_LEVELS[kind] + 0.3
    assert distinct_levels(rounded(values, coarse)) < LEAST_LEVELS[kind] - 0.3


def test_noise_on_top_is_no_coarseness() -> None:
    noisy = rounded(gaussian() + gaussian(1), 4)
    assert distinct_levels(noisy) > LEAST_LEVELS["int4"]


def test_coarse_matrices_are_named() -> None:
    class Reader:
        def tensor(self, name: str) -> NDArray[np.float32]:
            return rounded(gaussian(), 2) if name == "b" else gaussian()

    types: dict[str, MatrixType] = {"a": "fp32", "b": "int4"}
    found = coarse_matrices(Reader(), types)  # type: ignore[arg-type]
    assert list(found) == ["b"] and found["b"] < 4


def test_distance_is_relative() -> None:
    values = gaussian()
    assert distance(values, values) == 0.0
    assert distance(values * 1.5, values) == pytest.approx(0.5)
