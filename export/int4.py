"""Symmetric int4 weights in groups: value = code * scale, codes -8..7, one scale a group.

A group is ``block`` consecutive inputs of one output. The scale is searched, since rounding by
the largest weight alone wastes range on outliers: a grid of clipping factors, then the
least-squares scale for the codes found. Packing: docs/architecture.md (Weights).
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

MIN_BLOCK = 16
"""ONNX Runtime fuses blocks that are a power of two of at least this size."""
BLOCKS = (128, 64, 32, 16)
CLIP_FACTORS = tuple(float(value) for value in np.linspace(0.65, 1.05, 17))
"""Scales tried, in units of (largest magnitude of the group) / 7."""
CACHE_ELEMENTS = 200_000
"""Weights searched at a time: a few arrays of this size stay in a core's cache."""

Codes = NDArray[np.int8]
FloatMatrix = NDArray[np.float32]


def quantize(
    matrix: FloatMatrix, block: int, *, importance: NDArray[np.float32] | None = None
) -> tuple[Codes, FloatMatrix]:
    """Codes ``[in, out]`` and scales ``[in / block, out]`` of a finite matrix ``[in, out]``.

    ``importance [in]``: weight of each input's squared error; None: all count alike.
    """
    rows, columns = matrix.shape
    assert rows % block == 0, f"{rows} rows are no multiple of block {block}"
    groups = matrix.reshape(rows // block, block, columns)  # [in / block, block, out]
    codes = np.empty(groups.shape, dtype=np.int8)
    scales = np.empty((len(groups), columns), dtype=np.float32)
    step = max(1, CACHE_ELEMENTS // (block * columns))
    weights = _group_weights(importance, len(groups), block)

    def search(first: int) -> None:
        part = slice(first, first + step)
        own = None if weights is None else weights[part]
        codes[part], scales[part] = _quantize_groups(groups[part], own)

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # NumPy lets go of the interpreter
        list(pool.map(search, range(0, len(groups), step)))
    return codes.reshape(rows, columns), scales


def _group_weights(
    importance: NDArray[np.float32] | None, groups: int, block: int
) -> NDArray[np.float32] | None:
    """Square roots ``[groups, block, 1]``, each group's largest 1; None where all are alike."""
    if importance is None:
        return None
    weights = importance.reshape(groups, block, 1).astype(np.float32)
    largest = weights.max(axis=1, keepdims=True)
    even = largest <= 0
    roots: NDArray[np.float32] = np.sqrt(
        np.where(even, np.float32(1), weights / np.where(even, np.float32(1), largest))
    )
    return roots


def _quantize_groups(
    groups: FloatMatrix, weights: NDArray[np.float32] | None
) -> tuple[FloatMatrix, FloatMatrix]:
    """Codes ``[groups, block, out]`` as floats, and scales ``[groups, out]``."""
    largest = np.abs(groups).max(axis=1, keepdims=True)
    unit = np.where(largest > 0, largest, np.float32(1))
    scaled = groups / unit
    scaled *= np.float32(7)  # now -7..7, so that the search cannot overflow
    best = np.full_like(unit, CLIP_FACTORS[0])
    least = _error(scaled, best, weights)
    for factor in CLIP_FACTORS[1:]:
        error = _error(scaled, np.float32(factor), weights)
        better = error < least
        best[better] = factor
        least[better] = error[better]
    codes = _rounded(scaled, best)
    scales = _least_squares_scale(scaled, codes, weights) * (unit / np.float32(7))
    return codes, scales[:, 0, :]


def pack(codes: Codes) -> NDArray[np.uint8]:
    """Two codes a byte in row-major order, low nibble first: uint8 ``[codes.size / 2]``."""
    pairs = codes.reshape(-1, 2).view(np.uint8)  # [n / 2, 2]
    packed = np.empty(len(pairs), dtype=np.uint8)
    np.left_shift(pairs[:, 1], 4, out=packed)
    packed |= pairs[:, 0] & np.uint8(0xF)
    return packed


def unpack(packed: NDArray[np.uint8], shape: tuple[int, int]) -> Codes:
    """The codes ``[in, out]`` that ``pack`` was given."""
    pairs = np.stack([packed & 0xF, packed >> 4], axis=1).astype(np.int8)  # [n / 2, 2]
    return np.where(pairs > 7, pairs - 16, pairs).astype(np.int8).reshape(shape)


def dequantize(packed: NDArray[np.uint8], scales: FloatMatrix, rows: int) -> FloatMatrix:
    """The matrix ``[in, out]`` (``in`` = ``rows``) that packed codes and scales stand for."""
    groups, columns = scales.shape
    codes = unpack(packed, (rows, columns)).reshape(groups, rows // groups, columns)
    values = codes.astype(np.float32) * scales[:, None, :]
    return values.reshape(rows, columns)


def _rounded(scaled: FloatMatrix, factor: FloatMatrix | np.float32) -> FloatMatrix:
    """Nearest codes, as floats ``[groups, block, out]``."""
    codes = np.divide(scaled, factor)
    np.rint(codes, out=codes)
    np.clip(codes, -8, 7, out=codes)
    return codes


def _error(
    scaled: FloatMatrix, factor: FloatMatrix | np.float32, weights: NDArray[np.float32] | None
) -> FloatMatrix:
    """Squared error of each group at one scale ``[groups, 1, out]``."""
    rest = _rounded(scaled, factor)
    rest *= factor
    rest -= scaled
    if weights is not None:
        rest *= weights
    error: FloatMatrix = np.einsum("gbo,gbo->go", rest, rest)[:, None, :]
    return error


def _least_squares_scale(
    scaled: FloatMatrix, codes: FloatMatrix, weights: NDArray[np.float32] | None
) -> FloatMatrix:
    """The scale with the least squared error for fixed codes ``[groups, 1, out]``; 1 for zeros."""
    if weights is not None:
        scaled, codes = scaled * weights, codes * weights
    squares = np.einsum("gbo,gbo->go", codes, codes)[:, None, :]
    products = np.einsum("gbo,gbo->go", scaled, codes)[:, None, :]
    scale: FloatMatrix = np.ones_like(products)
    np.divide(products, squares, out=scale, where=squares > 0)
    return scale
