"""Graphs that take and give NumPy arrays behind the backend seam, so that the ladder can run them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from selfdraft.manifest import Manifest
from selfdraft.runtime.backend import BackboneOutput, FloatArray, IntArray, MtpOutput, Step
from selfdraft.runtime.embedding import load_table
from selfdraft.runtime.slot_cache import used_parts, write_parts


class Graphs(Protocol):
    """Both graphs of a bundle."""

    def run(self, name: str, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Outputs of graph ``name`` by name, states included; ``feed`` has every input."""


@dataclass(slots=True, kw_only=True)
class GraphStates:
    """States by name, as NumPy arrays; replaced at every pass."""

    batch: int
    capacity: int
    tensors: dict[str, NDArray[Any]]

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.tensors.values())


class GraphsBackend:
    """``graphs`` as a backend; states are copied at every pass: slow, for comparison only."""

    def __init__(self, name: str, bundle: Path, manifest: Manifest, graphs: Graphs) -> None:
        self.name, self.manifest = name, manifest
        self._graphs = graphs
        self._table = load_table(bundle, manifest)

    def allocate(self, *, batch: int, capacity: int) -> GraphStates:
        tensors = {
            state.name: np.zeros(state.sizes(batch=batch, capacity=capacity), np.dtype(state.dtype))
            for graph in self.manifest.graphs.values()
            for state in graph.states
        }
        return GraphStates(batch=batch, capacity=capacity, tensors=tensors)

    def run_backbone(self, states: GraphStates, step: Step, input_ids: IntArray) -> BackboneOutput:
        out = self._run("backbone", states, step, {"input_ids": input_ids})
        return BackboneOutput(
            hidden=out["hidden"],
            logits=out["logits"],
            top_values=out["top_values"],
            top_ids=out["top_ids"],
            blocks_read=out.get("blocks_read"),
        )

    def run_mtp(
        self, states: GraphStates, step: Step, input_ids: IntArray, hidden: NDArray[Any]
    ) -> MtpOutput:
        out = self._run("mtp", states, step, {"input_ids": input_ids, "hidden": hidden})
        return MtpOutput(
            hidden=out["hidden_out"],
            draft_ids=out["draft_ids"],
            top_values=out["top_values"],
            top_ids=out["top_ids"],
        )

    def read_rows(self, logits: NDArray[Any], rows: list[tuple[int, int]]) -> FloatArray:
        return np.stack([logits[slot, index] for slot, index in rows])

    def read_entries(self, logits: NDArray[Any], row: tuple[int, int], ids: IntArray) -> FloatArray:
        return np.asarray(logits[row][ids])

    def to_host(self, tensor: NDArray[Any]) -> NDArray[Any]:
        return tensor

    def export_states(
        self, states: GraphStates, *, slot: int, lengths: Mapping[str, int]
    ) -> dict[str, NDArray[Any]]:
        return used_parts(self.manifest, states.tensors, slot=slot, lengths=lengths)

    def import_states(
        self,
        states: GraphStates,
        *,
        slot: int,
        lengths: Mapping[str, int],
        arrays: Mapping[str, NDArray[Any]],
    ) -> None:
        parts = self.export_states(states, slot=slot, lengths=lengths)
        write_parts(parts, arrays)

    def _run(
        self, name: str, states: GraphStates, step: Step, feed: dict[str, NDArray[Any]]
    ) -> dict[str, NDArray[Any]]:
        graph = self.manifest.graphs[name]
        feed = feed | self._table
        feed |= {
            "past_len": step.past_len,
            "row_count": step.row_count,
            "attend_all": step.attend_all,
            "row_index": step.row_index,
        }
        feed |= {state.input: states.tensors[state.name] for state in graph.states}
        out = self._graphs.run(name, feed)
        for state in graph.states:
            states.tensors[state.name] = out[state.output]
        return out
