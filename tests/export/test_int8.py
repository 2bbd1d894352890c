from __future__ import annotations

import numpy as np
import pytest

from selfdraft.export.int8 import dequantize_int8, quantize_int8


@pytest.mark.parametrize("block", [16, 128])
def test_every_value_is_within_half_a_step_of_its_group(block: int) -> None:
    matrix = np.random.default_rng(0).standard_normal((256, 9)).astype(np.float32)
    matrix[block:, 3] *= 1000
    codes, scales = quantize_int8(matrix, block)
    assert (codes.dtype, scales.shape) == (np.int8, (256 // block, 9))
    error = np.abs(dequantize_int8(codes, scales) - matrix)
    assert (error <= 0.501 * np.repeat(scales, block, axis=0)).all()
    assert np.abs(codes.astype(int)).max() == 127


def test_zeros_and_extreme_sizes_stay_finite() -> None:
    matrix = np.zeros((32, 3), dtype=np.float32)
    matrix[:, 1], matrix[:, 2] = 3e38, 1e-44
    back = dequantize_int8(*quantize_int8(matrix, 32))
    assert np.isfinite(back).all()
    np.testing.assert_array_equal(back[:, 0], 0)
    np.testing.assert_allclose(back[:, 1], matrix[:, 1], rtol=1e-2)
