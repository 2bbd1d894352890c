"""Int4MatMul's contract, the layout of its weights, and the oracle."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from selfdraft.errors import ConfigError
from selfdraft.export.int4 import dequantize, pack, quantize
from selfdraft.trt_plugins.int4_matmul.contract import GROUP_SIZES, Int4MatMul
from selfdraft.trt_plugins.int4_matmul.oracle import dense_weight, int4_matmul
from selfdraft.trt_plugins.int4_matmul.packing import (
    STRIPS_AT_A_TIME,
    pack_codes,
    pack_scales,
    unpack_codes,
    unpack_scales,
)


def _op(inputs: int = 64, outputs: int = 64, group: int = 32) -> Int4MatMul:
    return Int4MatMul(in_features=inputs, out_features=outputs, group_size=group)


def _random_codes(op: Int4MatMul, seed: int = 0) -> np.ndarray:
    shape = (op.in_features, op.out_features)
    return np.random.default_rng(seed).integers(-8, 8, shape, dtype=np.int8)


def test_every_nibble_stands_where_the_layout_says() -> None:
    op = _op(inputs=192, outputs=130, group=32)
    codes = _random_codes(op)
    words = pack_codes(codes, op).view("<u4").reshape(op.strips, op.chunks, 4, 32, 4)
    places = product(range(op.strips), range(op.chunks), range(4), range(8), range(4))
    for strip, chunk, tile, g, t in places:
        for h, p, e, q, r in product(range(2), repeat=5):
            word = int(words[strip, chunk, tile, 4 * g + t, 2 * h + p])
            row = 64 * chunk + 32 * h + 8 * t + 4 * p + 2 * q + e
            column = 64 * strip + 16 * tile + 8 * r + g
            inside = row < op.in_features and column < op.out_features
            expected = int(codes[row, column]) if inside else 0
            assert (word >> (4 * (4 * e + 2 * q + r))) % 16 == expected + 8


def test_every_scale_stands_where_the_layout_says() -> None:
    op = _op(inputs=96, outputs=70, group=32)
    scales = np.random.default_rng(1).random((3, 70)).astype(np.float16)
    packed = pack_scales(scales, op)
    assert packed.shape == (2, 4, 64), "96 inputs fill two chunks: one group of padding"
    for strip, group, g, tile, r in product(range(2), range(4), range(8), range(4), range(2)):
        column = 64 * strip + 16 * tile + 8 * r + g
        expected = scales[group, column] if group < 3 and column < 70 else 0
        assert packed[strip, group, 8 * g + 2 * tile + r] == expected


@pytest.mark.parametrize("group", GROUP_SIZES)
@pytest.mark.parametrize("outputs", [1, 64, 100, 64 * STRIPS_AT_A_TIME + 3])
def test_unpacking_gives_back_what_was_packed(group: int, outputs: int) -> None:
    op = _op(inputs=3 * group, outputs=outputs, group=group)
    codes = _random_codes(op)
    scales = np.random.default_rng(2).random((3, outputs)).astype(np.float16)
    assert np.array_equal(unpack_codes(pack_codes(codes, op), op), codes)
    assert np.array_equal(unpack_scales(pack_scales(scales, op), op), scales)


@pytest.mark.parametrize("group", GROUP_SIZES)
def test_the_exporters_codes_mean_the_same_matrix_in_both_layouts(group: int) -> None:
    matrix = np.random.default_rng(3).standard_normal((2 * group, 72)).astype(np.float32)
    codes, scales = quantize(matrix, group)
    op = _op(inputs=2 * group, outputs=72, group=group)
    ours = dense_weight(pack_codes(codes, op), pack_scales(scales, op), op=op)
    halves = scales.astype(np.float16).astype(np.float32)
    assert np.array_equal(ours, dequantize(pack(codes), halves, 2 * group))


def test_the_oracle_multiplies_rows_of_any_leading_shape() -> None:
    op = _op(inputs=64, outputs=5, group=64)
    codes = _random_codes(op)
    scales = np.full((1, 5), 0.5, dtype=np.float16)
    x = np.random.default_rng(4).standard_normal((2, 3, 64)).astype(np.float16)
    y = int4_matmul(x, pack_codes(codes, op), pack_scales(scales, op), op=op)
    assert y.shape == (2, 3, 5) and y.dtype == np.float64
    assert np.allclose(y[1, 2], [x[1, 2].astype(float) @ codes[:, n] / 2 for n in range(5)])


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"group_size": 16}, "group_size is 16"),
        ({"in_features": 48}, "in_features is 48"),
        ({"in_features": 0}, "in_features is 0"),
        ({"out_features": 0}, "out_features is 0"),
    ],
)
def test_attributes_that_no_body_implements_are_refused(wrong: dict[str, int], named: str) -> None:
    attributes = {"in_features": 64, "out_features": 64, "group_size": 32} | wrong
    with pytest.raises(ConfigError, match=named):
        Int4MatMul(**attributes)


def test_codes_and_scales_out_of_range_or_shape_are_refused() -> None:
    op = _op()
    with pytest.raises(ConfigError, match="codes reach from 8 to 8"):
        pack_codes(np.full((64, 64), 8, dtype=np.int8), op)
    with pytest.raises(ConfigError, match=r"codes has shape \[64, 63\], must be \[64, 64\]"):
        pack_codes(np.zeros((64, 63), dtype=np.int8), op)
    with pytest.raises(ConfigError, match="not finite in fp16"):
        pack_scales(np.full((2, 64), 70_000.0), op)
    with pytest.raises(ConfigError, match=r"scales has shape \[1, 64\]"):
        pack_scales(np.ones((1, 64)), op)
    with pytest.raises(ConfigError, match="rows of 63"):
        x = np.ones((1, 63), dtype=np.float16)
        int4_matmul(x, np.zeros(op.weight_shape, np.int8), np.zeros(op.scale_shape, "f2"), op=op)
