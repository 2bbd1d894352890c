"""NumPy fp64 body of ``selfdraft::Int4MatMul``: what every kernel is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import ConfigError
from selfdraft.trt_plugins.int4_matmul.contract import Int4MatMul
from selfdraft.trt_plugins.int4_matmul.packing import Codes, Half, unpack_codes, unpack_scales

Float64 = NDArray[np.float64]


def int4_matmul(x: NDArray[Any], weight: Codes, scale: Half, *, op: Int4MatMul) -> Float64:
    """``y [..., N]`` of rows ``x [..., K]`` and packed weights, not rounded to fp16."""
    if x.shape[-1] != op.in_features:
        raise ConfigError(
            f"Int4MatMul: x has rows of {x.shape[-1]}, in_features is {op.in_features}",
            hint="pass rows of the matrix's inputs",
        )
    y: Float64 = x.astype(np.float64) @ dense_weight(weight, scale, op=op)
    return y


def dense_weight(weight: Codes, scale: Half, *, op: Int4MatMul) -> Float64:
    """The matrix ``[in_features, out_features]`` that the packed tensors stand for."""
    codes = unpack_codes(weight, op).astype(np.float64)
    scales = unpack_scales(scale, op).astype(np.float64)
    return codes * np.repeat(scales, op.group_size, axis=0)
