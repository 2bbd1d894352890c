"""Several small tensors in one piece of device memory, with its twin in pinned host memory.

One copy takes all of them across.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.manifest import TensorSpec
from selfdraft.runtime.trt.gpu import Gpu
from selfdraft.runtime.trt.limits import Sizes, resolve

ALIGNMENT = 256
"""Bytes that TensorRT asks of every tensor's address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """A tensor in device memory."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def block_bytes(tensors: Iterable[TensorSpec], largest: Sizes) -> int:
    """Device memory of a block of ``tensors``; as much is pinned on the host."""
    return sum(_aligned_bytes(tensor, largest) for tensor in tensors)


def _aligned_bytes(tensor: TensorSpec, sizes: Sizes) -> int:
    size = math.prod(resolve(tensor.shape, sizes)) * np.dtype(tensor.dtype).itemsize
    return -(-size // ALIGNMENT) * ALIGNMENT


class Block:
    """``tensors`` at their ``largest`` sizes, one behind the other."""

    def __init__(self, gpu: Gpu, tensors: Iterable[TensorSpec], largest: Sizes) -> None:
        self._gpu = gpu
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self._offsets: dict[str, int] = {}
        end = 0
        for tensor in self._tensors.values():
            self._offsets[tensor.name] = end
            end += _aligned_bytes(tensor, largest)
        self._buffer = gpu.allocate(end)
        self._pinned = gpu.pinned(end)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors."""
        return tuple(self._tensors)

    def device(self, name: str, sizes: Sizes) -> DeviceView:
        """A tensor of ``sizes`` on the device."""
        tensor = self._tensors[name]
        return DeviceView(
            address=self._buffer.address + self._offsets[name],
            shape=resolve(tensor.shape, sizes),
            dtype=np.dtype(tensor.dtype),
        )

    def host(self, name: str, sizes: Sizes) -> NDArray[Any]:
        """The same tensor on the host."""
        view = self.device(name, sizes)
        start = self._offsets[name]
        return self._pinned[start : start + view.num_bytes].view(view.dtype).reshape(view.shape)

    def upload(self) -> None:
        """Queue the copy of everything to the device."""
        self._gpu.upload(self._buffer.address, self._pinned)

    def download(self) -> None:
        """Queue the copy of everything to the host."""
        self._gpu.download(self._pinned, self._buffer.address)
