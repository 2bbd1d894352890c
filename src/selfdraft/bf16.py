"""bfloat16 as 16-bit patterns: NumPy has no type of that name."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import ConfigError


def bf16_from_fp32(values: NDArray[np.float32], *, name: str) -> NDArray[np.uint16]:
    """Patterns of the nearest bf16 values, ties to even.

    Raises ``ConfigError`` naming the tensor ``name`` where a finite value would become infinite.
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits  # no overflow: infinity and NaN do not come here
    patterns: NDArray[np.uint16] = (rounded >> np.uint32(16)).astype(np.uint16)
    if bool(((patterns & np.uint16(0x7F80)) == 0x7F80).any()):
        raise ConfigError(
            f"{name!r} holds values beyond bf16", hint="store it as fp32 (leave --weights out)"
        )
    return patterns


def fp32_from_bf16(patterns: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The values of bf16 patterns, exactly."""
    widened = patterns.astype(np.uint32)
    widened <<= np.uint32(16)
    values: NDArray[np.float32] = widened.view(np.float32)
    return values
