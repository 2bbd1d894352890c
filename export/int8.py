"""Symmetric int8 matrices, in groups of inputs like int4."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatMatrix = NDArray[np.float32]
MOST = 127


def quantize_int8(matrix: FloatMatrix, block: int) -> tuple[NDArray[np.int8], FloatMatrix]:
    """Codes ``[in, out]`` and scales ``[in / block, out]``; scale = largest magnitude / 127."""
    rows, columns = matrix.shape
    assert rows % block == 0, f"{rows} rows are no multiple of block {block}"
    groups = matrix.reshape(rows // block, block, columns)
    scales = _scales(np.abs(groups).max(axis=1))
    codes = np.rint(groups / scales[:, None, :]).clip(-MOST, MOST).astype(np.int8)
    return codes.reshape(rows, columns), scales


def quantize_rows(rows: FloatMatrix) -> tuple[NDArray[np.int8], FloatMatrix]:
    """Codes ``[n, H]`` and a scale for each row ``[n]``: how an embedding table is stored."""
    scales = _scales(np.abs(rows).max(axis=1))
    codes = np.rint(rows / scales[:, None]).clip(-MOST, MOST).astype(np.int8)
    return codes, scales


def dequantize_int8(codes: NDArray[np.int8], scales: FloatMatrix) -> FloatMatrix:
    """The matrix ``[in, out]`` that codes and scales ``[in / block, out]`` stand for."""
    block = len(codes) // len(scales)
    return codes.astype(np.float32) * np.repeat(scales, block, axis=0)


def _scales(largest: FloatMatrix) -> FloatMatrix:
    """Scale of each group; 1 where all values are 0. Divided first, so that none is subnormal."""
    scales = np.asarray(largest / np.float32(MOST), dtype=np.float32)
    return np.where(scales > 0, scales, np.float32(1))
