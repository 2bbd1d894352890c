"""A CUDA GPU through the driver library alone (``libcuda``), by ctypes: memory, kernels, graphs, time.

Works wherever a driver is, boards included, without a CUDA toolkit or a Python package. Functions:
CUDA Driver API reference. One context, one stream, addresses as plain integers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import DeviceError

LIBRARY = "libcuda.so.1"
HINT = "run it on a machine with an NVIDIA GPU and its driver"
MULTIPROCESSORS, L2_BYTES, MAJOR, MINOR = 16, 38, 75, 76
"""Numbers of device attributes (``CUdevice_attribute``)."""
MAX_DYNAMIC_SHARED = 8
CAPTURE_THREAD_LOCAL = 1


class Gpu:
    """The first GPU. Raises ``DeviceError`` where there is none, or a call fails.

    ``library``: something with the functions of ``libcuda``; the real one by default.
    """

    def __init__(self, library: Any = None) -> None:
        self._cuda = _load() if library is None else library
        self._call("cuInit", 0)
        device, context, stream = c_int(), c_void_p(), c_void_p()
        self._call("cuDeviceGet", byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", byref(context), device)
        self._call("cuCtxSetCurrent", context)
        # Ordered with the default stream, which copies from and to the host use.
        self._call("cuStreamCreate", byref(stream), 0)
        self._device, self._stream = device, stream
        self._buffers: list[int] = []
        self._functions: dict[tuple[bytes, str, int], c_void_p] = {}

    @property
    def name(self) -> str:
        """The card as the driver names it."""
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, 256, self._device)
        return text.value.decode()

    @property
    def arch(self) -> str:
        """Architecture that kernels must be compiled for, ``sm_87``."""
        return f"sm_{self._attribute(MAJOR)}{self._attribute(MINOR)}"

    @property
    def num_sms(self) -> int:
        """Multiprocessors."""
        return self._attribute(MULTIPROCESSORS)

    @property
    def l2_bytes(self) -> int:
        """Second-level cache."""
        return self._attribute(L2_BYTES)

    def allocate(self, num_bytes: int) -> int:
        """Address of new device memory, undefined, until ``free_all``."""
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), c_size_t(max(num_bytes, 16)))
        self._buffers.append(address.value)
        return address.value

    def free(self, *addresses: int) -> None:
        """Free what ``allocate`` gave."""
        self.synchronize()
        for address in addresses:
            self._buffers.remove(address)
            self._call("cuMemFree_v2", c_uint64(address))

    def free_all(self) -> None:
        """Free everything allocated so far."""
        self.free(*self._buffers)

    def upload(self, address: int, array: NDArray[Any]) -> None:
        """Copy a contiguous array to the device."""
        assert array.flags.c_contiguous
        self.synchronize()
        pointer = c_void_p(array.ctypes.data)
        self._call("cuMemcpyHtoD_v2", c_uint64(address), pointer, c_size_t(array.nbytes))

    def download(self, address: int, array: NDArray[Any]) -> None:
        """Fill a contiguous array from the device."""
        assert array.flags.c_contiguous
        self.synchronize()
        pointer = c_void_p(array.ctypes.data)
        self._call("cuMemcpyDtoH_v2", pointer, c_uint64(address), c_size_t(array.nbytes))

    def upload_new(self, array: NDArray[Any]) -> int:
        """Address of a copy of ``array``."""
        address = self.allocate(array.nbytes)
        self.upload(address, array)
        return address

    def copy(self, to: int, source: int, num_bytes: int) -> None:
        """Copy within the device, in stream order."""
        arguments = (c_uint64(to), c_uint64(source), c_size_t(num_bytes), self._stream)
        self._call("cuMemcpyDtoDAsync_v2", *arguments)

    def launch(
        self,
        cubin: bytes,
        kernel: str,
        params: ctypes.Structure,
        *,
        grid: tuple[int, int, int],
        threads: int,
        shared_bytes: int,
    ) -> None:
        """Launch a kernel of ``cubin`` in stream order; ``params`` is its one argument."""
        function = self._function(cubin, kernel, shared_bytes)
        pointers = (c_void_p * 1)(ctypes.addressof(params))
        sizes = [c_uint(size) for size in (*grid, threads, 1, 1, shared_bytes)]
        self._call("cuLaunchKernel", function, *sizes, self._stream, pointers, None)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """What ``work`` launches, as a CUDA graph: calling it launches all of that again.

        It is launched once before, since kernels must not be loaded while a stream is captured.
        """
        graph, executable = c_void_p(), c_void_p()
        work()
        self.synchronize()
        self._call("cuStreamBeginCapture_v2", self._stream, CAPTURE_THREAD_LOCAL)
        work()
        self._call("cuStreamEndCapture", self._stream, byref(graph))
        self._call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
        return lambda: self._call("cuGraphLaunch", executable, self._stream)

    def milliseconds(self, work: Callable[[], None]) -> float:
        """Time of what ``work`` puts into the stream, by events."""
        first, last, passed = c_void_p(), c_void_p(), c_float()
        for event in (first, last):
            self._call("cuEventCreate", byref(event), 0)
        self._call("cuEventRecord", first, self._stream)
        work()
        self._call("cuEventRecord", last, self._stream)
        self.synchronize()
        self._call("cuEventElapsedTime", byref(passed), first, last)
        for event in (first, last):
            self._call("cuEventDestroy_v2", event)
        return passed.value

    def synchronize(self) -> None:
        """Wait for everything launched; a fault of a kernel is raised here."""
        self._call("cuStreamSynchronize", self._stream)

    def _function(self, cubin: bytes, kernel: str, shared_bytes: int) -> c_void_p:
        """The kernel, allowed to have ``shared_bytes``; loaded once."""
        key = (cubin, kernel, shared_bytes)
        if key not in self._functions:
            module, function = c_void_p(), c_void_p()
            self._call("cuModuleLoadData", byref(module), cubin)
            self._call("cuModuleGetFunction", byref(function), module, kernel.encode())
            self._call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, c_int(shared_bytes))
            self._functions[key] = function
        return self._functions[key]

    def _attribute(self, number: int) -> int:
        value = c_int()
        self._call("cuDeviceGetAttribute", byref(value), number, self._device)
        return value.value

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._cuda, function)(*arguments)
        if status:
            raise DeviceError(f"{function}: {self._error(status)}", hint=HINT)

    def _error(self, status: int) -> str:
        text = c_char_p()
        self._cuda.cuGetErrorString(status, byref(text))
        return text.value.decode() if text.value else f"error {status}"


def random_halves(shape: tuple[int, ...], *, seed: int) -> NDArray[np.float16]:
    """Normal values, quickly: a piece of them repeated."""
    piece = np.random.default_rng(seed).standard_normal(1 << 20).astype(np.float16)
    return np.resize(piece, shape)


def _load() -> Any:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise DeviceError(f"there is no CUDA driver: {error}", hint=HINT) from None
