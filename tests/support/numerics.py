"""Tolerances by rung of the ladder of proof, and a comparison that says where and how far."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FP32_GRAPH = 2e-5
"""torch against ONNX Runtime, both fp32, relative to the largest value of the tensor.

Sums of at most a few thousand products, each rounded to 2^-24, in two different orders: their
difference grows with the square root of the length (about 60 · 6e-8 = 4e-6); the factor left
covers a handful of layers."""
FP64_AGAINST_FP32 = 5e-5
"""NumPy fp64 against an fp32 engine: as above, without the errors partly cancelling."""
FP16_STEP = 1e-3
"""One step of fp16 (2^-10): where a sum of either engine falls on the other side of a rounding."""


def assert_close(
    actual: NDArray[Any], expected: NDArray[Any], *, relative: float, name: str = "tensor"
) -> None:
    """``max |actual - expected| ≤ relative · max |expected|``; reports the worst element."""
    assert actual.shape == expected.shape, f"{name}: {actual.shape} against {expected.shape}"
    error = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    worst = np.unravel_index(int(np.argmax(error)), error.shape)
    allowed = relative * float(np.abs(expected).max(initial=1e-30))
    assert error[worst] <= allowed, (
        f"{name}{[int(i) for i in worst]}: {actual[worst]!r} against {expected[worst]!r}, "
        f"off by {error[worst]:.3g}, allowed {allowed:.3g}"
    )
