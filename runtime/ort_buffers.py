"""Memory that ONNX Runtime reads and writes: states, and the buffers of each shape of a pass."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.manifest import GraphSpec

ONNX_BFLOAT16 = 16
"""``TensorProto.BFLOAT16``."""
ALIGNMENT = 4096
"""Bytes. Blocks are gathered from caches into buffers that the engine aligns to 64 bytes; where a copy's
target lies 1 to 63 bytes behind its source within a page, as it may with an array as NumPy places it, some
processors copy at little more than half their speed."""


@dataclass(slots=True, kw_only=True)
class HostTensor:
    """A NumPy buffer and the OrtValue that shares its memory."""

    array: NDArray[Any]
    value: Any

    @classmethod
    def zeros(cls, shape: tuple[int, ...], dtype: str) -> HostTensor:
        return cls.of(_aligned_zeros(shape, np.dtype(dtype)))

    @classmethod
    def of(cls, array: NDArray[Any]) -> HostTensor:
        import onnxruntime as ort

        return cls(array=array, value=ort.OrtValue.ortvalue_from_numpy(array))

    @classmethod
    def of_bf16(cls, patterns: NDArray[np.uint16]) -> HostTensor:
        import onnxruntime as ort

        make = ort.OrtValue.ortvalue_from_numpy_with_onnx_type
        return cls(array=patterns, value=make(patterns, ONNX_BFLOAT16))


@dataclass(slots=True, kw_only=True)
class OrtStates:
    """Every state of both graphs, zero-initialised; owned by the backend that allocated it."""

    batch: int
    capacity: int
    tensors: dict[str, HostTensor]
    bindings: dict[tuple[Any, ...], Binding] = field(default_factory=dict)
    """By shape; those of a part of the slots are its own as well as the whole's."""

    @property
    def num_bytes(self) -> int:
        return sum(t.array.nbytes for t in self.tensors.values())

    def narrow(self, first: int, count: int) -> OrtStates:
        """Slots ``first`` to ``first + count`` of the same memory."""
        parts = {
            name: HostTensor.of(tensor.array[first : first + count])
            for name, tensor in self.tensors.items()
        }
        return OrtStates(batch=count, capacity=self.capacity, tensors=parts, bindings=self.bindings)

    def addresses(self) -> dict[str, int]:
        """Address of every state; they never change."""
        return {name: int(t.value.data_ptr()) for name, t in self.tensors.items()}


@dataclass(slots=True, kw_only=True)
class Binding:
    """One IO binding of a graph for fixed shapes, with its host buffers."""

    io: Any
    inputs: dict[str, HostTensor]
    """Buffers of its own, the embedding and no states."""
    outputs: dict[str, HostTensor]
    states: OrtStates | None = None
    """What it reads and writes now."""
    rebound: dict[str, HostTensor] = field(default_factory=dict)
    """Inputs that change their buffer between passes, as bound now."""

    def use(self, states: OrtStates, graph: GraphSpec) -> None:
        """Let the next pass run on ``states``; costs little where it did already."""
        if self.states is states:
            return
        for state in graph.states:
            value = states.tensors[state.name].value
            self.io.bind_ortvalue_input(state.input, value)
            self.io.bind_ortvalue_output(state.output, value)
        self.states = states

    def rebind(self, name: str, tensor: HostTensor) -> None:
        """Let the next pass read ``tensor``; costs little where it is bound already."""
        if self.rebound.get(name) is not tensor:
            self.io.bind_ortvalue_input(name, tensor.value)
            self.rebound[name] = tensor


def _aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Zeros that begin at a multiple of ``ALIGNMENT``; pages are touched on first use."""
    size = math.prod(shape) * dtype.itemsize
    room = np.zeros(size + ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % ALIGNMENT
    return room[begin : begin + size].view(dtype).reshape(shape)


def new_buffer(shape: tuple[int | str, ...], dtype: str, sizes: dict[str, int]) -> HostTensor:
    return HostTensor.zeros(tuple(sizes[d] if isinstance(d, str) else d for d in shape), dtype)
