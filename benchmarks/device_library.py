"""Kernels on a GPU behind the interface of the host layer: what runs on one runs on the other."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from benchmarks.cuda_driver import Gpu
from selfdraft.errors import DeviceError
from selfdraft.trt_plugins.build.kernel_list import plugin_folder
from selfdraft.trt_plugins.build.nvcc import Nvcc
from selfdraft.trt_plugins.build.nvrtc import Nvrtc
from selfdraft.trt_plugins.build.toolchain import Toolchain
from selfdraft.trt_plugins.host.launch import Params, Traffic


def find_toolchain() -> Toolchain:
    """nvcc where there is one, else NVRTC. Raises ``DeviceError``."""
    try:
        return Nvcc()
    except DeviceError:
        return Nvrtc()


def compile_for(gpu: Gpu, source: Path, toolchain: Toolchain) -> bytes:
    """Machine code of a kernel file for this GPU."""
    return toolchain.compile(source, arch=gpu.arch, include=[plugin_folder()]).cubin


class DeviceLibrary:
    """The kernels of one file; a launch copies every array there and back."""

    def __init__(self, gpu: Gpu, cubin: bytes) -> None:
        self._gpu, self._cubin = gpu, cubin

    def launch(
        self,
        kernel: str,
        params: Params,
        *,
        arrays: Sequence[NDArray[Any]],
        grid: tuple[int, int, int],
        threads: int,
        shared_bytes: int,
        seed: int = 0,
    ) -> Traffic:
        """As ``HostLibrary.launch``; a GPU chooses its own schedule and counts no bytes."""
        del seed
        addresses = {array.ctypes.data: self._gpu.upload_new(array) for array in arrays}
        self._gpu.launch(
            self._cubin,
            kernel,
            moved(params, addresses),
            grid=grid,
            threads=threads,
            shared_bytes=shared_bytes,
        )
        for array in arrays:
            self._gpu.download(addresses[array.ctypes.data], array)
        self._gpu.free(*addresses.values())
        return Traffic(read={}, written={})


def moved(params: Params, addresses: dict[int, int]) -> Params:
    """A copy of a parameter block whose pointers name device memory instead of the arrays."""
    block = type(params)()
    for name, kind in type(params)._fields_:  # type: ignore[misc]
        value = getattr(params, name)
        is_pointer = kind is ctypes.c_void_p and value is not None
        setattr(block, name, addresses[value] if is_pointer else value)
    return block
