"""The seam between the decode loop and an engine.

Three backends satisfy it: ``reference`` (NumPy, the oracle and the fake of every loop test),
``ort`` (ONNX Runtime) and, on the device, ``tensorrt``. Letters: docs/shapes.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from selfdraft.manifest import Manifest

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.floating[Any]]

DeviceTensor = Any
"""A tensor that stays with its backend, valid until the next run of the graph that made it."""


class States(Protocol):
    """Every state of both graphs for ``batch`` slots; owned by the backend that made it."""

    @property
    def batch(self) -> int: ...

    @property
    def capacity(self) -> int:
        """Cache slots a sequence may fill, reserve and scratch slot included."""
        ...

    @property
    def num_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What both graphs take beside tokens, hidden states and states. All int64, on the host."""

    past_len: IntArray
    """``[B]`` tokens already in this graph's cache."""
    row_count: IntArray
    """``[B]`` rows that are real in this slot; the rest of the n rows are padding (0: idle)."""
    attend_all: IntArray
    """``[B]`` 1: dense attention; 0: the selector of the op."""
    row_index: IntArray
    """``[B, m]`` rows whose logits are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneOutput:
    """Result of one backbone pass; arrays are valid until the next one (copy to keep)."""

    hidden: DeviceTensor
    """``[B, n, H]`` the tap that the MTP head reads."""
    logits: DeviceTensor
    """``[B, m, V]``; ``read_rows`` brings single rows to the host."""
    top_values: FloatArray
    """``[B, m, C]`` descending."""
    top_ids: IntArray
    """``[B, m, C]``; equal values in ascending id order."""
    blocks_read: IntArray | None = None
    """Blocks of KV that each sparse layer read for a slot and kv head; None: all are dense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpOutput:
    """Result of one MTP pass; tensors are valid until the pass after the next one.

    Arrays are there once ``to_host`` of ``draft_ids`` has returned: a backend may work ahead, so
    that a chain of drafts does not wait for the host.
    """

    hidden: DeviceTensor
    """``[B, m, H]`` recycled hidden state of the rows asked for."""
    draft_ids: DeviceTensor
    """``[B, m]`` int64 greedy drafts in the full vocabulary; may be fed to the next pass."""
    top_values: FloatArray
    """``[B, m, C']`` descending, over the draft vocabulary; equal values in any order."""
    top_ids: IntArray
    """``[B, m, C']`` in the full vocabulary."""


class Backend(Protocol):
    """Runs the two graphs of one bundle."""

    @property
    def name(self) -> str: ...

    @property
    def manifest(self) -> Manifest: ...

    def allocate(self, *, batch: int, capacity: int) -> States:
        """Zeroed states; ``capacity`` is a multiple of 64 (``manifest.capacity_for``)."""
        ...

    def run_backbone(self, states: States, step: Step, input_ids: IntArray) -> BackboneOutput:
        """One pass over ``input_ids [B, n]``; appends at ``past_len`` in place."""
        ...

    def run_mtp(
        self,
        states: States,
        step: Step,
        input_ids: IntArray | DeviceTensor,
        hidden: DeviceTensor | FloatArray,
    ) -> MtpOutput:
        """One pass over rows ``(hidden[b, i], input_ids[b, i])``, ids ``[B, n]``: next tokens.

        ``hidden [B, n, H]``: a tensor of an earlier pass, or host rows that ``to_host`` gave of some
        (what a decode loop kept while it did not draft), in the same dtype.
        """
        ...

    def read_rows(self, logits: DeviceTensor, rows: list[tuple[int, int]]) -> FloatArray:
        """Host copy ``[len(rows), V]`` of logit rows ``(slot, index in row_index)``."""
        ...

    def read_entries(self, logits: DeviceTensor, row: tuple[int, int], ids: IntArray) -> FloatArray:
        """Host copy ``[len(ids)]`` of single logits of one row ``(slot, index in row_index)``."""
        ...

    def to_host(self, tensor: DeviceTensor) -> NDArray[Any]:
        """Host view of a small tensor (draft ids, hidden states of a decode step)."""
        ...

    def export_states(
        self, states: States, *, slot: int, lengths: Mapping[str, int]
    ) -> dict[str, NDArray[Any]]:
        """One slot's states by the manifest's names, cut to ``lengths`` (tokens, by graph).

        ``[Hkv, length, d]`` and the like; valid until the next run. Nothing is copied on a host.
        """
        ...

    def import_states(
        self,
        states: States,
        *,
        slot: int,
        lengths: Mapping[str, int],
        arrays: Mapping[str, NDArray[Any]],
    ) -> None:
        """Put back what ``export_states`` gave for the same lengths."""
        ...
