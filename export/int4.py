"""Symmetric int4 weights in groups: value = code * scale, codes -8..7, one scale a group.

A group is ``block`` consecutive inputs of one output. The scale is searched, since rounding by
the largest weight alone wastes range on outliers: a grid of clipping factors, then the
least-squares scale for the codes found. Packing: docs/architecture.md (Weights).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MIN_BLOCK = 16
"""ONNX Runtime fuses blocks that are a power of two of at least this size."""
BLOCKS = (128, 64, 32, 16)
CLIP_FACTORS = tuple(float(value) for value in np.linspace(0.65, 1.05, 17))
"""Scales tried, in units of (largest magnitude of the group) / 7."""

Codes = NDArray[np.int8]
FloatMatrix = NDArray[np.float32]


def quantize(matrix: FloatMatrix, block: int) -> tuple[Codes, FloatMatrix]:
    """Codes ``[in, out]`` and scales ``[in / block, out]`` of a finite matrix ``[in, out]``."""
    rows, columns = matrix.shape
    assert rows % block == 0, f"{rows} rows are no multiple of block {block}"
    groups = matrix.reshape(rows // block, block, columns)  # [in / block, block, out]
    largest = np.abs(groups).max(axis=1, keepdims=True)
    unit = np.where(largest > 0, largest, np.float32(1))
    scaled = groups / unit
    scaled *= np.float32(7)  # now -7..7, so that the search cannot overflow
    codes, error = _rounded(scaled, np.float32(CLIP_FACTORS[0]))
    for factor in CLIP_FACTORS[1:]:
        tried, tried_error = _rounded(scaled, np.float32(factor))
        better = tried_error < error
        np.copyto(codes, tried, where=better)
        np.copyto(error, tried_error, where=better)
    scales = _least_squares_scale(scaled, codes) * (unit / np.float32(7))
    return (
        codes.astype(np.int8).reshape(rows, columns),
        np.ascontiguousarray(scales[:, 0, :], dtype=np.float32),
    )


def pack(codes: Codes) -> NDArray[np.uint8]:
    """Two codes a byte in row-major order, low nibble first: uint8 ``[codes.size / 2]``."""
    pairs = codes.reshape(-1, 2).view(np.uint8) & 0xF  # [n / 2, 2]
    return pairs[:, 0] | (pairs[:, 1] << 4)


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


def _rounded(scaled: FloatMatrix, factor: np.float32) -> tuple[FloatMatrix, FloatMatrix]:
    """Nearest codes at one scale ``[groups, block, out]``, squared error ``[groups, 1, out]``."""
    codes = scaled / factor
    np.rint(codes, out=codes)
    np.clip(codes, -8, 7, out=codes)
    rest = codes * factor
    rest -= scaled
    return codes, np.einsum("gbo,gbo->go", rest, rest)[:, None, :]


def _least_squares_scale(scaled: FloatMatrix, codes: FloatMatrix) -> FloatMatrix:
    """The scale with the least squared error for fixed codes ``[groups, 1, out]``; 1 for zeros."""
    squares = np.einsum("gbo,gbo->go", codes, codes)[:, None, :]
    products = np.einsum("gbo,gbo->go", scaled, codes)[:, None, :]
    return np.divide(products, squares, out=np.ones_like(products), where=squares > 0)
