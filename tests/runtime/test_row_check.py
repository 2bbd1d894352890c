"""The check for kernels that round one row otherwise than several."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from selfdraft.runtime.backend import Step
from selfdraft.runtime.row_check import one_row_rounds_like_two


class _Engine:
    """Logits that depend on the token alone, but for ``error`` in steps of one row."""

    def __init__(self, error: float) -> None:
        self.error = error
        self.rows: list[int] = []

    def allocate(self, *, batch: int, capacity: int) -> None:
        assert batch == 1 and capacity >= 2

    def run_backbone(self, states: None, step: Step, input_ids: NDArray[np.int64]) -> Any:
        rows = input_ids.shape[1]
        assert step.row_count.tolist() == [rows] and input_ids[0, 0] == 1
        self.rows.append(rows)
        logits = np.float32([1.5, -2.25, 0.75]) * input_ids[0, 0]
        return SimpleNamespace(logits=logits + np.float32(self.error if rows == 1 else 0.0))

    def to_host(self, tensor: NDArray[np.float32]) -> NDArray[np.float32]:
        return tensor


@pytest.mark.parametrize(("error", "alike"), [(0.0, True), (1e-6, False)])
def test_one_row_is_compared_with_the_same_row_beside_another(error: float, alike: bool) -> None:
    engine: Any = _Engine(error)
    assert one_row_rounds_like_two(engine) is alike
    assert engine.rows == [1, 2]
