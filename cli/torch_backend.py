"""The torch modules behind the backend seam, so that the ladder can run them like an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.manifest import Manifest
from selfdraft.runtime.backend import BackboneOutput, FloatArray, IntArray, MtpOutput, Step
from selfdraft.runtime.slot_cache import used_part, write_part


@dataclass(slots=True, kw_only=True)
class TorchStates:
    """States by name, as NumPy arrays; replaced at every pass."""

    batch: int
    capacity: int
    tensors: dict[str, NDArray[Any]]

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.tensors.values())


class TorchBackend:
    """Eager fp32 torch over a bundle's weights; slow, for comparison only."""

    name = "torch"

    def __init__(self, bundle: Path, manifest: Manifest) -> None:
        from selfdraft.export.torch_rung import TorchGraphs

        self.manifest = manifest
        self._graphs = TorchGraphs(bundle, manifest)
        self._embedding = _embedding(bundle / manifest.embedding_file)

    def allocate(self, *, batch: int, capacity: int) -> TorchStates:
        tensors = {
            state.name: np.zeros(state.sizes(batch=batch, capacity=capacity), np.dtype(state.dtype))
            for graph in self.manifest.graphs.values()
            for state in graph.states
        }
        return TorchStates(batch=batch, capacity=capacity, tensors=tensors)

    def run_backbone(self, states: TorchStates, step: Step, input_ids: IntArray) -> BackboneOutput:
        out = self._run("backbone", states, step, {"input_ids": input_ids})
        return BackboneOutput(
            hidden=out["hidden"],
            logits=out["logits"],
            top_values=out["top_values"],
            top_ids=out["top_ids"],
            blocks_read=out.get("blocks_read"),
        )

    def run_mtp(
        self, states: TorchStates, step: Step, input_ids: IntArray, hidden: NDArray[Any]
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
        self, states: TorchStates, *, slot: int, lengths: Mapping[str, int]
    ) -> dict[str, NDArray[Any]]:
        return {
            state.name: used_part(
                states.tensors[state.name], state.shape, slot=slot, length=lengths[graph]
            )
            for graph, spec in self.manifest.graphs.items()
            for state in spec.states
        }

    def import_states(
        self,
        states: TorchStates,
        *,
        slot: int,
        lengths: Mapping[str, int],
        arrays: Mapping[str, NDArray[Any]],
    ) -> None:
        parts = self.export_states(states, slot=slot, lengths=lengths)
        for name, part in parts.items():
            write_part(part, arrays[name])

    def _run(
        self, name: str, states: TorchStates, step: Step, feed: dict[str, NDArray[Any]]
    ) -> dict[str, NDArray[Any]]:
        graph = self.manifest.graphs[name]
        feed = feed | {
            "embedding": self._embedding,
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


def _embedding(path: Path) -> NDArray[np.float32]:
    from safetensors.numpy import load_file

    table: NDArray[np.float32] = load_file(str(path))["embedding"]
    return table
