"""Contenders: our engine alone, and our decode loop with everything a user pays for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from selfdraft.manifest import RESERVE_SLOTS, load_manifest
from selfdraft.runtime.backend import Step
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.ort import OrtBackend, OrtStates
from selfdraft.runtime.request import Request
from selfdraft.runtime.sampling import SamplingParams

BATCH_TOKEN = 7
"""Any token: what a step costs does not depend on it."""


def open_backend(bundle: Path, *, threads: int, profile: Path | None = None) -> OrtBackend:
    """The bundle on ONNX Runtime with ``threads`` threads inside an operator."""
    return OrtBackend(bundle, load_manifest(bundle), threads=threads, profile=profile)


def filled_states(backend: OrtBackend, *, capacity: int, length: int) -> OrtStates:
    """States of one slot with random values in the first ``length`` cache slots.

    Memory that was only allocated reads as one shared page of zeros, which is far too quick.
    """
    states = backend.allocate(batch=1, capacity=capacity)
    random = np.random.default_rng(0)
    for tensor in states.tensors.values():
        filled = tensor.array[:, :, :length]  # [1, Hkv, length, d]
        filled[...] = random.standard_normal(filled.shape, dtype=np.float32)
    return states


class EngineSteps:
    """The backbone alone, always at one length: one row, its logits and its candidates."""

    def __init__(self, backend: OrtBackend, *, length: int, capacity: int) -> None:
        assert length + RESERVE_SLOTS <= capacity, "no room for the row"
        self._backend = backend
        self._states = filled_states(backend, capacity=capacity, length=length)
        self._ids = np.full((1, 1), BATCH_TOKEN, dtype=np.int64)
        self._step = Step(
            past_len=np.array([length - 1], dtype=np.int64),
            row_count=np.array([1], dtype=np.int64),
            attend_all=np.array([0], dtype=np.int64),
            row_index=np.array([[0]], dtype=np.int64),
        )

    @property
    def states(self) -> OrtStates:
        return self._states

    def prepare(self) -> None:
        """Nothing: a step does not advance."""

    def step(self) -> int:
        """One pass; the same cache slot is written every time."""
        self._backend.run_backbone(self._states, self._step, self._ids)
        return 1


class LoopSteps:
    """The decode loop, greedy: plain (``drafts`` 0) or self-speculative."""

    def __init__(
        self,
        backend: OrtBackend | TimedEngine,
        *,
        length: int,
        context_length: int,
        drafts: int = 0,
        forced_acceptance: Sequence[float] | None = None,
    ) -> None:
        checked: Any = backend  # the protocol cannot say that a backend takes its own states
        self._loop = DecodeLoop(
            checked,
            drafts=drafts,
            context_length=context_length,
            forced_acceptance=forced_acceptance,
        )
        random = np.random.default_rng(0)
        vocab = backend.manifest.model.vocab_size
        self._request = Request(
            prompt_ids=tuple(random.integers(vocab, size=length).tolist()),
            sampling=SamplingParams(temperature=0.0),
            ignore_eos=True,
        )

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and reply so far."""
        return self._loop.tokens(0)

    def prepare(self) -> None:
        """Back to the prompt; its rows stay in the caches."""
        self._loop.cancel(0)
        self._loop.begin({0: self._request})

    def step(self) -> int:
        """One step; the tokens it delivered."""
        return len(self._loop.step())


class TimedEngine:
    """A backend that adds up the time spent inside its own passes."""

    def __init__(self, backend: Any, clock: Any) -> None:
        self._backend = backend
        self._clock = clock
        self.engine_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def run_backbone(self, *args: Any) -> Any:
        """The backend's pass, timed."""
        return self._timed(self._backend.run_backbone, args)

    def run_mtp(self, *args: Any) -> Any:
        """The backend's pass, timed."""
        return self._timed(self._backend.run_mtp, args)

    def to_host(self, tensor: Any) -> Any:
        """The backend's, called as directly as the loop would."""
        return self._backend.to_host(tensor)

    def _timed(self, function: Any, args: tuple[Any, ...]) -> Any:
        start = self._clock()
        result = function(*args)
        self.engine_s += self._clock() - start
        return result
