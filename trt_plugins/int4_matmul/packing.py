"""Layout of int4 weights as the kernels read them; shared by the exporter and the tests.

``weight[strip, chunk]`` is 2,048 bytes: the codes of 64 outputs and 64 inputs. In it come 4 tiles of 16
outputs, in a tile 32 lanes, for a lane 4 words of 32 bits (little endian), in a word 8 nibbles. With
lane = 4g + t, word = 2h + p and nibble = 4e + 2q + r the nibble holds code + 8 of

    output = 64 strip + 16 tile + 8 r + g        input = 64 chunk + 32 h + 8 t + 4 p + 2 q + e

so that a word, masked with 0x000f000f after a shift by 4i, is register i of operand A of
``mma.m16n8k16``: lane, r and q are the operand's own layout, and within a half chunk each lane has eight
consecutive inputs, which it loads from a row of x in one piece. ``scale[strip, group]`` is 64 values in
the order [g][tile][r]: the eight of a lane lie together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import ConfigError
from selfdraft.trt_plugins.int4_matmul.contract import (
    CHUNK_BYTES,
    CHUNK_INPUTS,
    STRIP_OUTPUTS,
    Int4MatMul,
)

CODE_OFFSET = 8
"""A nibble is code + 8, which the kernel turns into an fp16 number by a mask and a subtraction."""
STRIPS_AT_A_TIME = 64
"""Strips packed at once, so that temporaries stay small beside the weights."""

Codes = NDArray[np.int8]
Scales = NDArray[np.floating[Any]]
Half = NDArray[np.float16]

# input = [chunk, h, t, p, q, e], output = [strip, tile, r, g]
_SPLIT_INPUTS = (2, 4, 2, 2, 2)
_SPLIT_OUTPUTS = (4, 2, 8)
_TO_PACKED = (6, 0, 7, 9, 2, 1, 3, 5, 4, 8)  # [strip, chunk, tile, g, t, h, p, e, q, r]
_TO_PLAIN = tuple(int(i) for i in np.argsort(_TO_PACKED))


def matmul_of(
    weight: tuple[int, ...], scale: tuple[int, ...], *, in_features: int, out_features: int
) -> Int4MatMul:
    """The operator that packed tensors of these shapes belong to: their group follows from both."""
    groups = scale[1] if len(scale) == 3 else 0
    chunks = weight[1] if len(weight) == 3 else 0
    group_size = chunks * CHUNK_INPUTS // groups if groups else 0
    op = Int4MatMul(in_features=in_features, out_features=out_features, group_size=group_size)
    _check_shape("weight", weight, op.weight_shape)
    _check_shape("scale", scale, op.scale_shape)
    return op


def pack_codes(codes: Codes, op: Int4MatMul) -> Codes:
    """``weight`` (``op.weight_shape``) from codes ``[in_features, out_features]`` in -8..7."""
    _check_shape("codes", codes.shape, (op.in_features, op.out_features))
    if codes.size and (codes.min() < -8 or codes.max() > 7):
        raise ConfigError(
            f"codes reach from {codes.min()} to {codes.max()}, int4 holds -8 to 7",
            hint="quantise the matrix again",
        )
    packed = np.empty(op.weight_shape, dtype=np.int8)
    for first in range(0, op.strips, STRIPS_AT_A_TIME):
        part = slice(first, min(first + STRIPS_AT_A_TIME, op.strips))
        columns = codes[:, part.start * STRIP_OUTPUTS : part.stop * STRIP_OUTPUTS]
        packed[part] = _pack_strips(columns, op.chunks, part.stop - part.start)
    return packed


def unpack_codes(weight: Codes, op: Int4MatMul) -> Codes:
    """The codes ``[in_features, out_features]`` that ``pack_codes`` was given."""
    _check_shape("weight", weight.shape, op.weight_shape)
    pairs = weight.view(np.uint8)
    nibbles = np.stack([pairs & 0xF, pairs >> 4], axis=-1)  # [strips, chunks, 2048, 2]
    shape = (op.strips, op.chunks, 4, 8, 4, 2, 2, 2, 2, 2)
    plain = nibbles.reshape(shape).transpose(_TO_PLAIN)
    shifted = plain.reshape(op.padded_inputs, op.strips * STRIP_OUTPUTS).astype(np.int8)
    codes: Codes = shifted[: op.in_features, : op.out_features] - np.int8(CODE_OFFSET)
    return codes


def pack_scales(scales: Scales, op: Int4MatMul) -> Half:
    """``scale`` (``op.scale_shape``) from scales ``[in / group, out]``; padding has scale 0."""
    _check_shape("scales", scales.shape, (op.in_features // op.group_size, op.out_features))
    padded = np.zeros((op.groups, op.strips * STRIP_OUTPUTS), dtype=np.float16)
    with np.errstate(over="ignore"):
        padded[: scales.shape[0], : scales.shape[1]] = scales
    if not np.isfinite(padded).all():
        raise ConfigError(
            f"a scale is not finite in fp16 (largest magnitude {np.abs(scales).max():.3g})",
            hint="weights beyond 500,000 cannot be int4 on a device; choose --weights fp32",
        )
    split = padded.reshape(op.groups, op.strips, *_SPLIT_OUTPUTS)  # [group, strip, tile, r, g]
    packed: Half = np.ascontiguousarray(split.transpose(1, 0, 4, 2, 3)).reshape(op.scale_shape)
    return packed


def unpack_scales(scale: Half, op: Int4MatMul) -> Half:
    """The scales ``[in / group, out]`` that ``pack_scales`` was given, in fp16."""
    _check_shape("scale", scale.shape, op.scale_shape)
    split = scale.reshape(op.strips, op.groups, 8, 4, 2).transpose(1, 0, 3, 4, 2)
    plain: Half = split.reshape(op.groups, op.strips * STRIP_OUTPUTS)
    return plain[: op.in_features // op.group_size, : op.out_features]


def _pack_strips(codes: Codes, chunks: int, strips: int) -> Codes:
    """Packed codes ``[strips, chunks, CHUNK_BYTES]`` of the outputs of some strips."""
    padded = np.zeros((chunks * CHUNK_INPUTS, strips * STRIP_OUTPUTS), dtype=np.int8)
    padded[: codes.shape[0], : codes.shape[1]] = codes
    padded += np.int8(CODE_OFFSET)
    split = padded.reshape(chunks, *_SPLIT_INPUTS, strips, *_SPLIT_OUTPUTS)
    nibbles = split.transpose(_TO_PACKED).reshape(-1, 2).view(np.uint8)
    pairs: NDArray[np.uint8] = nibbles[:, 0] | (nibbles[:, 1] << 4)
    return pairs.view(np.int8).reshape(strips, chunks, CHUNK_BYTES)


def _check_shape(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if found != wanted:
        raise ConfigError(
            f"Int4MatMul: {name} has shape {list(found)}, must be {list(wanted)}",
            hint="pack with the attributes of the node",
        )
