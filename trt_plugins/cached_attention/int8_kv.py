"""int8 keys and values with one fp16 scale for each token and head.

Every step is one correctly rounded fp32 operation, so that all bodies find the same codes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]

LARGEST_CODE = 127
SMALLEST_SCALE = np.float16(2.0**-24)
LARGEST_SCALE = np.float16(65504.0)


def quantise(x: FloatArray) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Codes ``[..., d]`` and scales ``[...]`` of ``x [..., d]``.

    The scale is max |x| / 127 rounded to fp16 (1 where all are zero), kept between the smallest
    and the largest fp16 value above zero. A value is off by at most half a scale, or by
    127 / 2^25 = 4e-6 where that is more (scales below 2^-14, which fp16 rounds coarsely); values
    above 127 · 65504 are cut to that. NaN stays NaN through its scale.
    """
    exact = np.asarray(x, dtype=np.float32)
    largest = np.abs(exact).max(axis=-1)  # [...]
    scale = largest / np.float32(LARGEST_CODE)
    # Clipped before the cast, which would turn large values into infinity.
    scale = np.minimum(scale, np.float32(LARGEST_SCALE)).astype(np.float16)
    scale = np.maximum(scale, SMALLEST_SCALE)
    scale = np.where(largest == 0, np.float16(1), scale)
    with np.errstate(invalid="ignore"):
        ratio = exact / scale.astype(np.float32)[..., None]
    codes = np.clip(np.rint(ratio), -LARGEST_CODE, LARGEST_CODE)
    return np.nan_to_num(codes).astype(np.int8), scale


def dequantise(codes: NDArray[np.int8], scale: NDArray[np.float16]) -> NDArray[np.float64]:
    """``code · scale``: codes ``[..., d]``, scales ``[...]``."""
    return codes.astype(np.float64) * scale.astype(np.float64)[..., None]
