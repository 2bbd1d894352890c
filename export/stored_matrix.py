"""Matrices of a bundle's weights file as float32, whatever form they are stored in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.export.int4 import dequantize, unpack
from selfdraft.export.int8 import dequantize_int8


def stored_values(tensors: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    """The tensor ``name``: as stored, or from its codes, scales, zero points and order."""
    if name in tensors:
        return tensors[name]
    scales: NDArray[np.float32] = tensors[f"{name}.scale"]
    if f"{name}.int8" in tensors:
        return dequantize_int8(tensors[f"{name}.int8"], scales)
    packed = tensors[f"{name}.int4"]
    rows = packed.size * 2 // scales.shape[1]
    values = dequantize(packed, scales, rows)
    if f"{name}.zero" in tensors:
        shape = (scales.shape[0], scales.shape[1])
        zeros = unpack(tensors[f"{name}.zero"], shape).astype(np.float32) * scales
        values -= np.repeat(zeros, rows // len(scales), axis=0)
    if f"{name}.order" in tensors:
        natural = np.empty_like(values)
        natural[tensors[f"{name}.order"]] = values
        return natural
    return values
