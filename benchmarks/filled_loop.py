"""Our decode loop at a given length, on a filled cache that several contenders share."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from selfdraft.cli.filled_backend import FilledBackend
from selfdraft.cli.synthetic_cache import Content, filled_cache
from selfdraft.manifest import capacity_for
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.ort import HostTensor, OrtBackend, OrtStates
from selfdraft.runtime.request import Request
from selfdraft.runtime.sampling import SamplingParams
from selfdraft.runtime.slot_cache import SlotCache

Attention = Literal["dense", "sparse"]
SLOT = 0


class FilledCache:
    """States of one slot with ``length`` random rows, made for the bundle of ``backend``."""

    def __init__(
        self, backend: OrtBackend, *, length: int, room: int, content: Content | None = None
    ) -> None:
        checked: Any = backend  # the protocol cannot say that a backend takes its own states
        self.length = length
        self.context_length = length + 1 + room
        self.states = backend.allocate(batch=1, capacity=capacity_for(self.context_length))
        states: Any = self.states
        self.cache = filled_cache(checked, states, length=length, content=content or Content())

    def for_bundle(self, backend: OrtBackend) -> tuple[OrtStates, SlotCache]:
        """The same buffers for another bundle of the same model: those of its states."""
        names = [s.name for graph in backend.manifest.graphs.values() for s in graph.states]
        tensors = {name: self.states.tensors[name] for name in names}
        states = OrtStates(batch=1, capacity=self.states.capacity, tensors=tensors)
        arrays = backend.export_states(states, slot=SLOT, lengths=self.cache.lengths)
        return states, dataclasses.replace(self.cache, arrays=arrays)

    def layers(self) -> list[tuple[HostTensor, HostTensor]]:
        """Keys and values of each backbone layer."""
        tensors = self.states.tensors
        count = sum(name.startswith("backbone.k_cache_") for name in tensors)
        return [
            (tensors[f"backbone.k_cache_{i}"], tensors[f"backbone.v_cache_{i}"])
            for i in range(count)
        ]


class FilledLoop:
    """Plain greedy decoding from a filled cache: everything that a user pays for."""

    def __init__(self, backend: OrtBackend, filled: FilledCache, *, attention: Attention) -> None:
        checked: Any = backend
        states, cache = filled.for_bundle(backend)
        shared: Any = states
        self.backend = FilledBackend(checked, shared, attend_all=attention == "dense")
        prefill = attention if backend.manifest.attention else "dense"
        self._loop = DecodeLoop(
            self.backend,
            drafts=0,
            context_length=filled.context_length,
            prefill_attention=prefill,
        )
        self._loop.restore(SLOT, dataclasses.replace(cache, prefill=prefill))
        self._request = Request(
            prompt_ids=cache.tokens, sampling=SamplingParams(temperature=0.0), ignore_eos=True
        )

    def prepare(self) -> None:
        """Back to the filled rows."""
        self._loop.cancel(SLOT)
        self._loop.begin({SLOT: self._request})
        self.backend.blocks_read.clear()

    def step(self) -> int:
        """One token."""
        return len(self._loop.step())
