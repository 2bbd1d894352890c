"""What a calibration text changes about stored weights: importance and scaling of inputs.

Scaling (AWQ, arXiv 2306.00978 §3.2): row i of a matrix is multiplied by s_i, and the norm before it
divided by s_i, which changes no product in exact arithmetic but lets inputs with large activations
keep more of their precision. Importance: the error of a group weighs each input by the mean square
of its activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """By target name; what is not named stays as it is."""

    mean_squares: Mapping[str, Vector] = field(default_factory=dict)
    """Mean square of each input ``[in]`` of a matrix."""
    row_factors: Mapping[str, Vector] = field(default_factory=dict)
    """Factors ``[in]`` on the rows of a matrix."""
    norm_divisors: Mapping[str, Vector] = field(default_factory=dict)
    """What the values of a norm are divided by ``[H]``."""

    def vector(self, target: str, values: Vector) -> Vector:
        """A norm as stored."""
        divisor = self.norm_divisors.get(target)
        return values if divisor is None else values / divisor

    def rows(self, target: str, inputs: slice, piece: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows ``inputs`` of a matrix as stored, before they are quantised."""
        factors = self.row_factors.get(target)
        return piece if factors is None else piece * factors[inputs, None]

    def importance(self, target: str, inputs: slice) -> Vector | None:
        """Weight of each input's error; None: all count alike."""
        squares = self.mean_squares.get(target)
        if squares is None:
            return None
        factors = self.row_factors.get(target)
        chosen = squares[inputs]
        return chosen if factors is None else chosen / factors[inputs] ** 2


NO_TUNING = Tuning()
