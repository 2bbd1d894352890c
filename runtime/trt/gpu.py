"""Device memory, pinned memory, one stream and its events: the only module that knows pycuda.

Addresses are plain integers, so another CUDA binding can take pycuda's place by offering ``Gpu``.
Methods that only queue work are called in every step: their callers guard them (``cuda_errors``).
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import DeviceError, ResourceError
from selfdraft.runtime.trt.capture import CapturedGraph, DriverGraphs

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBuffer:
    """Device memory of ``num_bytes`` from ``address``, free when nothing refers to it."""

    address: int
    num_bytes: int
    allocation: Any
    """What keeps the memory."""


class Event:
    """A point in the stream, moved on by every ``record``."""

    def __init__(self, event: Any, stream: Any) -> None:
        self._event = event
        self._stream = stream

    def record(self) -> None:
        """Let it be the end of what is queued so far."""
        self._event.record(self._stream)

    def wait(self) -> None:
        """Return when everything before this point is done."""
        with cuda_errors("waiting for the GPU"):
            self._event.synchronize()


class Gpu:
    """The primary context of a device, which TensorRT uses too, and one stream of work in order.

    Raises ``DeviceError`` without pycuda or a device. Calls of another thread than the one that made
    it belong in ``current``.
    """

    def __init__(self, index: int = 0) -> None:
        self._cuda = _pycuda()
        with cuda_errors("opening the GPU"):
            self._cuda.init()
            self._device = self._cuda.Device(index)
            self._context = self._device.retain_primary_context()
            self._context.push()
            self._thread = threading.get_ident()
            self._stream = self._cuda.Stream()
        self._graphs: DriverGraphs | None = None
        atexit.register(self.close)

    @property
    def name(self) -> str:
        """As the driver calls the device."""
        return str(self._device.name())

    @property
    def compute_capability(self) -> str:
        """``8.7`` on every Orin."""
        major, minor = self._device.compute_capability()
        return f"{major}.{minor}"

    @property
    def multiprocessors(self) -> int:
        """Streaming multiprocessors that are switched on."""
        number = self._cuda.device_attribute.MULTIPROCESSOR_COUNT
        return int(self._device.get_attribute(number))

    @property
    def stream(self) -> int:
        """Handle of the stream."""
        return int(self._stream.handle)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Let the calling thread use the device meanwhile.

        A thread must not end with a context of its own left: pycuda aborts the process then.
        """
        if threading.get_ident() == self._thread or self._context is None:
            yield
            return
        with cuda_errors("using the GPU on another thread"):
            self._context.push()
        try:
            yield
        finally:
            self._context.pop()

    def allocate(self, num_bytes: int) -> DeviceBuffer:
        """Memory of zeros. Raises ``ResourceError`` where there is not enough."""
        num_bytes = max(num_bytes, 1)
        with cuda_errors(f"allocating {num_bytes} bytes of device memory"):
            allocation = self._cuda.mem_alloc(num_bytes)
            address = int(allocation)
            self._cuda.memset_d8_async(address, 0, num_bytes, self._stream)
        return DeviceBuffer(address=address, num_bytes=num_bytes, allocation=allocation)

    def pinned(self, num_bytes: int) -> Bytes:
        """Host memory ``[num_bytes]`` of zeros that copies reach without a detour."""
        with cuda_errors(f"allocating {num_bytes} bytes of pinned memory"):
            array: Bytes = self._cuda.pagelocked_empty(max(num_bytes, 1), np.uint8)
        array[:] = 0
        return array

    def upload(self, address: int, source: Bytes) -> None:
        """Queue a copy of pinned memory to the device; leave it as it is until that is done."""
        self._cuda.memcpy_htod_async(address, source, self._stream)

    def download(self, target: Bytes, address: int) -> None:
        """Queue a copy to pinned memory; it is there after the next ``Event.wait``."""
        self._cuda.memcpy_dtoh_async(target, address, self._stream)

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """Queue a copy from device to device."""
        self._cuda.memcpy_dtod_async(target, source, num_bytes, self._stream)

    def store(self, address: int, source: NDArray[Any]) -> None:
        """Copy any contiguous array to the device, now."""
        self.synchronize()
        with cuda_errors("copying to the device"):
            self._cuda.memcpy_htod(address, source)

    def fetch(self, target: NDArray[Any], address: int) -> None:
        """Copy from the device to any contiguous array, now."""
        self.synchronize()
        with cuda_errors("copying from the device"):
            self._cuda.memcpy_dtoh(target, address)

    def event(self) -> Event:
        """A point to wait for, not recorded yet."""
        with cuda_errors("making an event"):
            event = self._cuda.Event(self._cuda.event_flags.DISABLE_TIMING)
        return Event(event, self._stream)

    def synchronize(self) -> None:
        """Wait for everything queued."""
        with cuda_errors("waiting for the GPU"):
            self._stream.synchronize()

    def finish_before(self, owner: object) -> None:
        """Let queued work end before ``owner`` goes, and with it contexts that the work needs."""
        weakref.finalize(owner, self._finish).atexit = False

    def _finish(self) -> None:
        with self.current():
            self._stream.synchronize()

    def capture(self, enqueue: Callable[[], None]) -> CapturedGraph:
        """What ``enqueue`` queues, recorded and not run. It may neither allocate nor wait."""
        if self._graphs is None:
            self._graphs = DriverGraphs()
        return self._graphs.capture(self.stream, enqueue)

    def close(self) -> None:
        """Leave the context, on the thread that entered it; further calls do nothing."""
        if self._context is not None and threading.get_ident() == self._thread:
            context, self._context = self._context, None
            context.pop()


def _pycuda() -> Any:
    try:
        import pycuda.driver
    except ImportError as error:
        raise DeviceError(
            f"pycuda cannot be imported: {error}",
            hint="install it on the board: pip install 'selfdraft[jetson]' (needs nvcc on PATH)",
        ) from None
    return pycuda.driver


@contextmanager
def cuda_errors(doing: str) -> Iterator[None]:
    """CUDA's own exceptions as ``ResourceError`` or ``DeviceError``, with what was being done."""
    import pycuda.driver as cuda

    try:
        yield
    except cuda.MemoryError as error:
        raise ResourceError(
            f"{doing} failed: {error}",
            hint="free memory (selfdraft doctor), or choose a smaller --context or a smaller model",
        ) from None
    except cuda.Error as error:
        raise DeviceError(
            f"{doing} failed: {error}", hint="check the board with: selfdraft doctor"
        ) from None
