"""CUDA graphs through the driver library: pycuda (2026.1) has no functions for them."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from selfdraft.errors import DeviceError

THREAD_LOCAL = 1
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may do as they like meanwhile."""


class DriverGraphs:
    """Records a stream's work, and launches the record."""

    def __init__(self) -> None:
        self._driver = _load_driver()

    def capture(self, stream: int, enqueue: Callable[[], None]) -> CapturedGraph:
        """What ``enqueue`` puts on ``stream``. Raises ``DeviceError`` where it cannot be recorded."""
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        try:
            self._record(stream, enqueue, graph)
            self._call(
                "cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0)
            )
        finally:
            # What is launched is a copy; a capture that failed may have left no graph.
            if graph:
                self._driver.cuGraphDestroy(graph)
        return CapturedGraph(self, executable)

    def _record(self, stream: int, enqueue: Callable[[], None], graph: ctypes.c_void_p) -> None:
        """Let ``graph`` be what ``enqueue`` puts on ``stream``; the caller frees it."""
        with _no_collection():
            self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), THREAD_LOCAL)
            try:
                enqueue()
            finally:
                # A capture that is not ended would block the stream for good.
                end = self._driver.cuStreamEndCapture
                ended = end(ctypes.c_void_p(stream), ctypes.byref(graph))
        self._check("cuStreamEndCapture", ended)

    def launch(self, executable: ctypes.c_void_p, stream: int) -> None:
        """Queue a record."""
        self._call("cuGraphLaunch", executable, ctypes.c_void_p(stream))

    def destroy(self, executable: ctypes.c_void_p) -> None:
        """Free a record."""
        self._driver.cuGraphExecDestroy(executable)

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(name, getattr(self._driver, name)(*arguments))

    def _check(self, name: str, status: int) -> None:
        if status:
            raise DeviceError(
                f"{name} failed with CUDA error {status}",
                hint="run without CUDA graphs: SELFDRAFT_CUDA_GRAPHS=0",
            )


class CapturedGraph:
    """A record of work with fixed addresses; freed with this object."""

    def __init__(self, graphs: DriverGraphs, executable: ctypes.c_void_p) -> None:
        self._graphs = graphs
        self._executable = executable
        weakref.finalize(self, graphs.destroy, executable)

    def launch(self, stream: int) -> None:
        """Queue the work once more."""
        self._graphs.launch(self._executable, stream)


@contextmanager
def _no_collection() -> Iterator[None]:
    """No collector meanwhile: states in a circle of objects wait for the stream when they go, which
    ends a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _load_driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(
            f"the CUDA driver library does not load: {error}",
            hint="check the board with: selfdraft doctor",
        ) from None
