from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfdraft.export.int4 import dequantize, pack, quantize, unpack


def rounded_by_largest(matrix: np.ndarray, block: int) -> np.ndarray:
    """Plain rounding, scale = largest magnitude / 7: what the search has to beat."""
    groups = matrix.reshape(-1, block, matrix.shape[1])
    scale = np.abs(groups).max(axis=1, keepdims=True) / 7
    return (np.clip(np.rint(groups / scale), -8, 7) * scale).reshape(matrix.shape)


def round_trip(matrix: np.ndarray, block: int) -> np.ndarray:
    codes, scales = quantize(matrix, block)
    return dequantize(pack(codes), scales, len(matrix))


@pytest.mark.parametrize("block", [16, 32, 64, 128])
def test_shapes_types_and_range(block: int) -> None:
    matrix = np.random.default_rng(0).standard_normal((256, 37)).astype(np.float32)
    codes, scales = quantize(matrix, block)
    assert (codes.dtype, codes.shape) == (np.int8, (256, 37))
    assert (scales.dtype, scales.shape) == (np.float32, (256 // block, 37))
    assert codes.min() >= -8 and codes.max() <= 7
    assert (scales > 0).all()


@pytest.mark.parametrize("block", [16, 32, 64, 128])
def test_searched_scale_beats_rounding_by_the_largest_weight_in_every_group(block: int) -> None:
    random = np.random.default_rng(block)
    matrix = random.standard_t(4, (512, 40)).astype(np.float32)  # heavy tails, as weights have
    found = ((round_trip(matrix, block) - matrix) ** 2).reshape(-1, block, 40).sum(axis=1)
    plain = ((rounded_by_largest(matrix, block) - matrix) ** 2).reshape(-1, block, 40).sum(axis=1)
    assert (found <= plain * 1.0001).all()
    assert found.sum() < 0.9 * plain.sum()


def test_each_output_has_scales_of_its_own_along_the_inputs() -> None:
    random = np.random.default_rng(1)
    matrix = random.standard_normal((64, 3)).astype(np.float32)
    matrix[:32, 1] *= 1000
    matrix[32:, 2] *= 1e-3
    error = np.abs(round_trip(matrix, 32) - matrix).reshape(2, 32, 3).max(axis=1)
    size = np.abs(matrix).reshape(2, 32, 3).max(axis=1)
    assert (error < size / 5).all()


def test_values_that_codes_hold_exactly_come_back_exactly() -> None:
    codes = np.tile(np.arange(-8, 8, dtype=np.float32), 2)[:, None]  # [32, 1]
    for scale in (1.0, 0.5, 2.0**-10):
        np.testing.assert_array_equal(round_trip(codes * np.float32(scale), 32), codes * scale)


def test_groups_of_zeros_and_extreme_sizes_stay_finite() -> None:
    matrix = np.zeros((32, 4), dtype=np.float32)
    matrix[:, 1] = 3e38
    matrix[:, 2] = 1e-38
    matrix[0, 3] = -5
    back = round_trip(matrix, 32)
    assert np.isfinite(back).all()
    np.testing.assert_array_equal(back[:, 0], 0)
    np.testing.assert_allclose(back[:, 1:], matrix[:, 1:], rtol=0.1)


def test_first_code_lies_in_the_low_nibble_in_row_major_order() -> None:
    codes = np.array([[1, -1], [-8, 7]], dtype=np.int8)
    np.testing.assert_array_equal(pack(codes), np.array([0xF1, 0x78], dtype=np.uint8))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_packing_is_undone_by_unpacking(groups: int, columns: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    codes = random.integers(-8, 8, (groups * 16, columns), dtype=np.int8)
    packed = pack(codes)
    assert packed.shape == (codes.size // 2,)
    np.testing.assert_array_equal(unpack(packed, codes.shape), codes)


def test_splitting_the_work_does_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    from selfdraft.export import int4

    matrix = np.random.default_rng(2).standard_normal((256, 50)).astype(np.float32)
    whole = quantize(matrix, 32)
    monkeypatch.setattr(int4, "CACHE_ELEMENTS", 1)
    for left, right in zip(whole, quantize(matrix, 32), strict=True):
        np.testing.assert_array_equal(left, right)


def test_packing_is_the_one_that_onnx_reads() -> None:
    onnx_helper = pytest.importorskip("onnx.numpy_helper")
    from onnx import TensorProto

    codes, scales = quantize(
        np.random.default_rng(3).standard_normal((32, 6)).astype(np.float32), 16
    )
    tensor = TensorProto(
        data_type=TensorProto.INT4, dims=codes.shape, raw_data=pack(codes).tobytes()
    )
    read = onnx_helper.to_array(tensor).astype(np.int8)
    np.testing.assert_array_equal(read, codes)
    np.testing.assert_array_equal(
        dequantize(pack(codes), scales, 32), codes * np.repeat(scales, 16, axis=0)
    )
