"""TensorRT's progress while it builds, as stages with counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorrt as trt

OnStage = Callable[[str, int, int], None]
"""Called with (stage, steps done, steps in all)."""


def progress_monitor(tensorrt: Any, graph: str, on_stage: OnStage) -> trt.IProgressMonitor:
    """A monitor that reports the outermost phase; an exception in ``on_stage`` ends the build."""

    class Monitor(tensorrt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.steps: dict[str, int] = {}
            self.error: BaseException | None = None

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            if parent_phase is None:
                self.steps[phase_name] = num_steps
                self._report(phase_name, 0)

        def phase_finish(self, phase_name: str) -> None:
            if phase_name in self.steps:
                self._report(phase_name, self.steps[phase_name])

        def step_complete(self, phase_name: str, step: int) -> bool:
            if phase_name in self.steps:
                self._report(phase_name, min(step + 1, self.steps[phase_name]))
            return self.error is None

        def _report(self, phase: str, done: int) -> None:
            # An exception that left a callback would end the process in C++.
            try:
                on_stage(f"{graph}: {phase}", done, self.steps[phase])
            except BaseException as error:  # noqa: BLE001
                self.error = error

    monitor: trt.IProgressMonitor = Monitor()
    return monitor


def raise_stopped(monitor: trt.IProgressMonitor) -> None:
    """Raise what ended the build early, if anything did."""
    error: BaseException | None = getattr(monitor, "error", None)
    if error is not None:
        raise error
