"""A backend that adds up the time spent inside it, so that the loop's own time can be told."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from numpy.typing import NDArray

from selfdraft.manifest import Manifest
from selfdraft.runtime.backend import (
    BackboneOutput,
    Backend,
    DeviceTensor,
    FloatArray,
    IntArray,
    MtpOutput,
    States,
    Step,
)

T = TypeVar("T")


class TimedBackend:
    """Runs everything on ``inner``; ``seconds`` is the time that took."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.seconds = 0.0

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def manifest(self) -> Manifest:
        return self._inner.manifest

    def allocate(self, *, batch: int, capacity: int) -> States:
        return self._inner.allocate(batch=batch, capacity=capacity)

    def run_backbone(self, states: States, step: Step, input_ids: IntArray) -> BackboneOutput:
        return self._timed(lambda: self._inner.run_backbone(states, step, input_ids))

    def run_mtp(
        self,
        states: States,
        step: Step,
        input_ids: IntArray | DeviceTensor,
        hidden: DeviceTensor | FloatArray,
    ) -> MtpOutput:
        return self._timed(lambda: self._inner.run_mtp(states, step, input_ids, hidden))

    def read_rows(self, logits: DeviceTensor, rows: list[tuple[int, int]]) -> FloatArray:
        return self._timed(lambda: self._inner.read_rows(logits, rows))

    def read_entries(self, logits: DeviceTensor, row: tuple[int, int], ids: IntArray) -> FloatArray:
        return self._timed(lambda: self._inner.read_entries(logits, row, ids))

    def to_host(self, tensor: DeviceTensor) -> NDArray[Any]:
        return self._timed(lambda: self._inner.to_host(tensor))

    def export_states(
        self, states: States, *, slot: int, lengths: Mapping[str, int]
    ) -> dict[str, NDArray[Any]]:
        return self._inner.export_states(states, slot=slot, lengths=lengths)

    def import_states(
        self,
        states: States,
        *,
        slot: int,
        lengths: Mapping[str, int],
        arrays: Mapping[str, NDArray[Any]],
    ) -> None:
        self._inner.import_states(states, slot=slot, lengths=lengths, arrays=arrays)

    def _timed(self, work: Callable[[], T]) -> T:
        started = time.perf_counter()
        try:
            return work()
        finally:
            self.seconds += time.perf_counter() - started
