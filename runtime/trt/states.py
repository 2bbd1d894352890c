"""States in device memory: allocated once, zeroed, never moved; and the way of one slot to a file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.manifest import Manifest, StateSpec
from selfdraft.runtime.slot_cache import used_part
from selfdraft.runtime.trt.gpu import DeviceBuffer, Gpu

if TYPE_CHECKING:
    from selfdraft.runtime.trt.passes import Pass, PassKey


@dataclass(kw_only=True)
class TrtStates:
    """Every state of both graphs, and the passes that are bound to them."""

    batch: int
    capacity: int
    buffers: dict[str, DeviceBuffer]
    outputs: dict[str, DeviceBuffer]
    """Where passes write the states that are not updated in place (``StateSpec.aliased``)."""
    passes: dict[PassKey, Pass] = field(default_factory=dict)
    turn: int = 0
    """Which of its two sets of buffers the MTP head used last."""

    @property
    def num_bytes(self) -> int:
        held = (*self.buffers.values(), *self.outputs.values())
        return sum(buffer.num_bytes for buffer in held)

    def addresses(self) -> dict[str, int]:
        """Address of every state; they never change."""
        return {name: buffer.address for name, buffer in self.buffers.items()}

    def output(self, state: StateSpec) -> DeviceBuffer:
        """Where a pass writes ``state``: over it, unless that is not allowed."""
        return (self.buffers if state.aliased else self.outputs)[state.name]


def allocate_states(gpu: Gpu, manifest: Manifest, *, batch: int, capacity: int) -> TrtStates:
    """Zeroed states; the largest first, while device memory is in one piece."""
    sizes = {
        state.name: _num_bytes(state.sizes(batch=batch, capacity=capacity), state.dtype)
        for graph in manifest.graphs.values()
        for state in graph.states
    }
    order = sorted(sizes, key=sizes.__getitem__, reverse=True)
    allocated = {name: gpu.allocate(sizes[name]) for name in order}
    buffers = {name: allocated[name] for name in sizes}
    apart = [state.name for _, state in _states(manifest) if not state.aliased]
    outputs = {name: gpu.allocate(sizes[name]) for name in apart}
    states = TrtStates(batch=batch, capacity=capacity, buffers=buffers, outputs=outputs)
    gpu.finish_before(states)
    return states


def export_slot(
    gpu: Gpu, manifest: Manifest, states: TrtStates, *, slot: int, lengths: Mapping[str, int]
) -> dict[str, NDArray[Any]]:
    """Host copies of one slot's states by name, cut to ``lengths`` (tokens, by graph)."""
    arrays = {}
    for graph, state in _states(manifest):
        part = _host_part(state, states, slot=slot, length=lengths[graph])
        for index, address in _runs(state, states, slot=slot):
            if part[index].size:
                gpu.fetch(part[index], address)
        arrays[state.name] = part
    return arrays


def import_slot(
    gpu: Gpu,
    manifest: Manifest,
    states: TrtStates,
    *,
    slot: int,
    lengths: Mapping[str, int],
    arrays: Mapping[str, NDArray[Any]],
) -> None:
    """Put back what ``export_slot`` gave; floats may have another width."""
    for graph, state in _states(manifest):
        part = _host_part(state, states, slot=slot, length=lengths[graph])
        value = arrays[state.name]
        assert part.shape == value.shape, (state.name, part.shape, value.shape)
        np.copyto(part, value, casting="same_kind")
        for index, address in _runs(state, states, slot=slot):
            if part[index].size:
                gpu.store(address, part[index])


def _states(manifest: Manifest) -> Iterator[tuple[str, StateSpec]]:
    for graph, spec in manifest.graphs.items():
        for state in spec.states:
            yield graph, state


def _num_bytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


def _host_part(state: StateSpec, states: TrtStates, *, slot: int, length: int) -> NDArray[Any]:
    """An empty array of the shape that one slot uses of a state."""
    sizes = state.sizes(batch=states.batch, capacity=states.capacity)
    # Broadcast from one element: only the shape of the view is wanted.
    whole = np.broadcast_to(np.zeros((), np.dtype(state.dtype)), sizes)
    return np.empty_like(used_part(whole, state.shape, slot=slot, length=length), order="C")


def _runs(
    state: StateSpec, states: TrtStates, *, slot: int
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Index into a host part, and device address, of each unbroken run of memory.

    Axes between the slot and the tokens (heads, on some targets) break the memory of a part.
    """
    sizes = state.sizes(batch=states.batch, capacity=states.capacity)
    assert state.shape[0] == "batch", state.shape
    cut = next((i for i, dim in enumerate(state.shape) if dim in ("capacity", "blocks")), 1)
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    start = states.buffers[state.name].address
    itemsize = np.dtype(state.dtype).itemsize
    for index in np.ndindex(*sizes[1:cut]):
        offset = slot * strides[0]
        offset += sum(place * stride for place, stride in zip(index, strides[1:], strict=False))
        yield index, start + offset * itemsize
