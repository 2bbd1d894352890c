"""The functions of ``libcuda`` that our driver calls, on host memory: kernels run on the host layer.

Stands in for a GPU where there is none. A "cubin" is the path of the kernel file, as ``FakeCompiler``
writes it. Time is invented. Captured work is recorded, and done when its graph is launched.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.host_kernels import host_library

from selfdraft.trt_plugins.build.toolchain import Compiled
from selfdraft.trt_plugins.host.launch import Params

ATTRIBUTES = {16: 16, 38: 4 << 20, 75: 8, 76: 7}
"""16 multiprocessors, 4 MiB of second-level cache, compute capability 8.7: an AGX Orin."""
MILLISECONDS = 0.5
OUT_OF_MEMORY = 2


class FakeCompiler:
    """Compiles nothing: the code is the source's path."""

    name, version = "fake", "1.0"

    def compile(self, source: Path, *, arch: str, include: Sequence[Path]) -> Compiled:
        assert arch == "sm_87" and include
        return Compiled(cubin=str(source).encode(), log="")


class FakeCuda:
    """See the module. ``memory_bytes`` is what may be allocated at once."""

    def __init__(self, memory_bytes: int = 1 << 30) -> None:
        self.left = memory_bytes
        self.attributes = ATTRIBUTES
        self.buffers: dict[int, NDArray[np.uint8]] = {}
        self.modules: list[bytes] = []
        self.functions: list[tuple[bytes, str]] = []
        self.graphs: list[list[Callable[[], None]]] = []
        self.capturing: list[Callable[[], None]] | None = None
        self.launched: list[str] = []

    def __getattr__(self, name: str) -> Any:
        """Functions that only create or end things that this double does not need."""
        if not name.startswith("cu"):
            raise AttributeError(name)
        return lambda *_: 0

    def cuDeviceGetName(self, text: Any, size: int, device: Any) -> int:
        text.value = b"imitated GPU"
        return 0

    def cuDeviceGetAttribute(self, value: Any, number: int, device: Any) -> int:
        value._obj.value = self.attributes[number]
        return 0

    def cuGetErrorString(self, status: int, text: Any) -> int:
        text._obj.value = {OUT_OF_MEMORY: b"out of memory"}[status]
        return 0

    def cuMemAlloc_v2(self, address: Any, size: Any) -> int:
        if size.value > self.left:
            return OUT_OF_MEMORY
        buffer = np.full(size.value, 0xFF, dtype=np.uint8)
        self.left -= buffer.nbytes
        address._obj.value = buffer.ctypes.data
        self.buffers[buffer.ctypes.data] = buffer
        return 0

    def cuMemFree_v2(self, address: Any) -> int:
        self.left += self.buffers.pop(address.value).nbytes
        return 0

    def cuMemcpyHtoD_v2(self, to: Any, source: Any, size: Any) -> int:
        self._check(to.value, size.value)
        ctypes.memmove(to.value, source.value, size.value)
        return 0

    def cuMemcpyDtoH_v2(self, to: Any, source: Any, size: Any) -> int:
        self._check(source.value, size.value)
        ctypes.memmove(to.value, source.value, size.value)
        return 0

    def cuMemcpyDtoDAsync_v2(self, to: Any, source: Any, size: Any, stream: Any) -> int:
        self._check(to.value, size.value)
        self._check(source.value, size.value)
        self._do(lambda: ctypes.memmove(to.value, source.value, size.value))
        return 0

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:
        assert self.capturing is None, "a capture must not load"
        self.modules.append(image)
        module._obj.value = len(self.modules)
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        self.functions.append((self.modules[module.value - 1], name.decode()))
        function._obj.value = len(self.functions)
        return 0

    def cuLaunchKernel(self, function: Any, *rest: Any) -> int:
        *sizes, shared, _, pointers, extra = rest
        x, y, z, threads, rows, planes = (size.value for size in sizes)
        assert (rows, planes, extra) == (1, 1, None)
        image, kernel = self.functions[function.value - 1]
        library = host_library(Path(image.decode()))
        # As on a device: parameters are copied at the launch.
        size = library._function(f"host_params_bytes_{kernel}", ctypes.c_uint64)()
        fields = [("words", ctypes.c_uint64 * (size // 8))]
        block: Params = type("Block", (Params,), {"_fields_": fields})()
        ctypes.memmove(ctypes.addressof(block), pointers[0], size)

        def run() -> None:
            self.launched.append(kernel)
            library.launch(
                kernel,
                block,
                arrays=list(self.buffers.values()),
                grid=(x, y, z),
                threads=threads,
                shared_bytes=shared.value,
                seed=len(self.launched),
            )

        self._do(run)
        return 0

    def cuStreamBeginCapture_v2(self, stream: Any, mode: int) -> int:
        assert self.capturing is None
        self.capturing = []
        return 0

    def cuStreamEndCapture(self, stream: Any, graph: Any) -> int:
        assert self.capturing is not None
        self.graphs.append(self.capturing)
        graph._obj.value, self.capturing = len(self.graphs), None
        return 0

    def cuGraphInstantiateWithFlags(self, executable: Any, graph: Any, flags: Any) -> int:
        executable._obj.value = graph.value
        return 0

    def cuGraphLaunch(self, executable: Any, stream: Any) -> int:
        for work in self.graphs[executable.value - 1]:
            work()
        return 0

    def cuStreamSynchronize(self, stream: Any) -> int:
        assert self.capturing is None, "a capture must not wait"
        return 0

    def cuEventElapsedTime(self, passed: Any, first: Any, last: Any) -> int:
        passed._obj.value = MILLISECONDS
        return 0

    def _do(self, work: Callable[[], None]) -> None:
        if self.capturing is None:
            work()
        else:
            self.capturing.append(work)

    def _check(self, address: int, size: int) -> None:
        assert any(
            start <= address and address + size <= start + buffer.nbytes
            for start, buffer in self.buffers.items()
        ), "copies stay within device memory"
