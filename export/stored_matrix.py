"""Matrices of a bundle's weights file as float32, whatever form they are stored in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.bf16 import fp32_from_bf16
from selfdraft.export.int4 import dequantize, unpack
from selfdraft.export.int8 import dequantize_int8
from selfdraft.trt_plugins.int4_matmul.oracle import dense_weight
from selfdraft.trt_plugins.int4_matmul.packing import matmul_of


def stored_values(
    tensors: Mapping[str, NDArray[Any]], name: str, *, shape: tuple[int, ...] | None = None
) -> NDArray[Any]:
    """The tensor ``name``: as stored, or from its codes, scales, zero points and order.

    ``shape [in, out]`` is needed for strips of codes, which are padded.
    """
    if name in tensors:
        found = tensors[name]
        return found.astype(np.float32) if found.dtype == np.float16 else found
    if f"{name}.bf16" in tensors:
        return fp32_from_bf16(tensors[f"{name}.bf16"])
    if f"{name}.strips" in tensors:
        assert shape is not None and len(shape) == 2
        values = _from_strips(tensors, name, shape[0], shape[1])
        return _natural(values, tensors.get(f"{name}.order"))
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
    return _natural(values, tensors.get(f"{name}.order"))


def _natural(values: NDArray[Any], order: NDArray[np.int64] | None) -> NDArray[Any]:
    """Rows in the order of the matrix's inputs."""
    if order is None:
        return values
    natural = np.empty_like(values)
    natural[order] = values
    return natural


def _from_strips(
    tensors: Mapping[str, NDArray[Any]], name: str, inputs: int, outputs: int
) -> NDArray[np.float32]:
    weight, scale = tensors[f"{name}.strips"], tensors[f"{name}.strip_scale"]
    op = matmul_of(weight.shape, scale.shape, in_features=inputs, out_features=outputs)
    return dense_weight(weight, scale, op=op).astype(np.float32)
