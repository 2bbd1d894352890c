"""The functions of ``pycuda.driver`` (2026.1) that the backend uses, on a ``FakeDevice``."""

from __future__ import annotations

import ctypes
import threading
import types
import weakref
from typing import Any

import numpy as np
from support.trt_double.device import FakeDevice, Work

STREAM_HANDLE = 0x5EED


class FakeError(Exception):
    """``pycuda.driver.Error``."""


class FakeMemoryError(FakeError):
    """``pycuda.driver.MemoryError``."""


class FakeContext:
    """The primary context; each thread has a stack of its own."""

    def __init__(self, device: FakeDevice) -> None:
        self._entered = device.entered

    def push(self) -> None:
        thread = threading.get_ident()
        self._entered[thread] = self._entered.get(thread, 0) + 1

    def pop(self) -> None:
        thread = threading.get_ident()
        assert self._entered.get(thread), "the context stack is empty"
        self._entered[thread] -= 1


class FakeDeviceHandle:
    """``pycuda.driver.Device``: an AGX Orin."""

    def __init__(self, index: int, device: FakeDevice) -> None:
        assert index == 0
        self._device = device

    def retain_primary_context(self) -> FakeContext:
        return FakeContext(self._device)

    def name(self) -> str:
        return "Orin (double)"

    def compute_capability(self) -> tuple[int, int]:
        return (8, 7)

    def get_attribute(self, number: int) -> int:
        return {16: 16}[number]


class FakeAllocation:
    """``DeviceAllocation``: an integer in disguise that frees its memory when it goes."""

    def __init__(self, device: FakeDevice, address: int) -> None:
        self._address = address
        weakref.finalize(self, device.free, address).atexit = False

    def __int__(self) -> int:
        return self._address


class FakeStream:
    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.handle = STREAM_HANDLE

    def synchronize(self) -> None:
        self._device.finish()


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        device.count_allocation()
        self._device = device
        self._place: int | None = None

    def record(self, stream: FakeStream) -> None:
        assert self._device.capturing is None
        self._place = self._device.num_queued

    def synchronize(self) -> None:
        assert self._place is not None, "an event that was never recorded is waited for"
        self._device.run_until(self._place)


def pycuda_modules(device: FakeDevice) -> dict[str, types.ModuleType]:
    """``pycuda`` and ``pycuda.driver``."""
    driver: Any = types.ModuleType("pycuda.driver")
    initialised: list[bool] = []

    def new_device(index: int) -> FakeDeviceHandle:
        assert initialised, "pycuda.driver.init was not called"
        return FakeDeviceHandle(index, device)

    def mem_alloc(num_bytes: int) -> FakeAllocation:
        address = device.allocate(num_bytes)
        if not address:
            raise FakeMemoryError("cuMemAlloc failed: out of memory")
        return FakeAllocation(device, address)

    def memset(address: int, value: int, num_bytes: int, stream: FakeStream) -> None:
        view = device.view(address, num_bytes)
        device.put(Work(label="set", run=lambda: view.fill(value)))

    driver.init = lambda: initialised.append(True)
    driver.Device = new_device
    driver.Stream = lambda: FakeStream(device)
    driver.Event = lambda flags=0: FakeEvent(device)
    driver.event_flags = types.SimpleNamespace(DISABLE_TIMING=2)
    driver.device_attribute = types.SimpleNamespace(MULTIPROCESSOR_COUNT=16)
    driver.Error, driver.MemoryError = FakeError, FakeMemoryError
    driver.mem_alloc = mem_alloc
    driver.pagelocked_empty = lambda size, dtype: device.make_pinned(size).view(np.dtype(dtype))
    driver.memset_d8_async = memset
    driver.memcpy_htod_async = lambda to, source, stream: device.put(device.copy_in(to, source))
    driver.memcpy_dtoh_async = lambda to, source, stream: device.put(device.copy_out(to, source))
    driver.memcpy_dtod_async = lambda to, source, size, stream: device.put(
        device.copy_across(to, source, size)
    )
    driver.memcpy_htod = lambda to, source: device.copy_now(to, source, out=False)
    driver.memcpy_dtoh = lambda to, source: device.copy_now(source, to, out=True)
    package: Any = types.ModuleType("pycuda")
    package.driver = driver
    return {"pycuda": package, "pycuda.driver": driver}


class FakeDriver:
    """libcuda's functions for stream capture; statuses as CUDA's: 0 is success."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.graphs: list[list[Work]] = []
        self.num_launches = 0
        self.fails: str | None = None
        """Name of a function that returns an error."""

    def cuStreamBeginCapture_v2(self, stream: ctypes.c_void_p, mode: int) -> int:
        assert stream.value == STREAM_HANDLE and mode == 1
        assert self._device.capturing is None
        self._device.capturing = []
        return self._status("cuStreamBeginCapture_v2")

    def cuStreamEndCapture(self, stream: ctypes.c_void_p, graph: Any) -> int:
        work, self._device.capturing = self._device.capturing, None
        assert work is not None
        self.graphs.append(work)
        graph._obj.value = len(self.graphs)
        return self._status("cuStreamEndCapture")

    def cuGraphInstantiateWithFlags(self, executable: Any, graph: Any, flags: Any) -> int:
        executable._obj.value = graph.value
        return self._status("cuGraphInstantiateWithFlags")

    def cuGraphDestroy(self, graph: ctypes.c_void_p) -> int:
        return 0

    def cuGraphExecDestroy(self, executable: ctypes.c_void_p) -> int:
        return 0

    def cuGraphLaunch(self, executable: ctypes.c_void_p, stream: ctypes.c_void_p) -> int:
        assert stream.value == STREAM_HANDLE and executable.value
        self.num_launches += 1
        for work in self.graphs[executable.value - 1]:
            self._device.put(work)
        return self._status("cuGraphLaunch")

    def _status(self, name: str) -> int:
        return 900 if self.fails == name else 0
