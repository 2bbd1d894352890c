"""The TensorRT backend: the two engines of a bundle, run by the same loop as any other backend.

Per decode step and graph: one small copy to the device, one launch of a recorded CUDA graph, and one
copy of the candidates back. States, embedding and addresses stay where they are from the start; in
a chain of drafts each pass reads what the one before it left on the device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import ConfigError
from selfdraft.manifest import MAX_STEP_ROWS, GraphSpec, Manifest
from selfdraft.runtime.attention_record import BLOCKS_READ
from selfdraft.runtime.backend import (
    BackboneOutput,
    FloatArray,
    IntArray,
    MtpOutput,
    Step,
)
from selfdraft.runtime.graph_check import check_graph_names
from selfdraft.runtime.trt.binding import LOGITS, Binder, wanted_embedding
from selfdraft.runtime.trt.embedding import upload_embedding
from selfdraft.runtime.trt.engines import open_engines
from selfdraft.runtime.trt.gpu import Gpu, cuda_errors
from selfdraft.runtime.trt.library import import_tensorrt
from selfdraft.runtime.trt.limits import PROMPT_ROWS, EngineLimits
from selfdraft.runtime.trt.passes import TrtTensor
from selfdraft.runtime.trt.sidecar import Board
from selfdraft.runtime.trt.states import TrtStates, allocate_states, export_slot, import_slot

GRAPHS_VARIABLE = "SELFDRAFT_CUDA_GRAPHS"
FEW_ENTRIES = 16
"""Single logits that are fetched one by one; more of them: the whole row."""
P = ParamSpec("P")
R = TypeVar("R")


def _on_gpu(
    method: Callable[Concatenate[TensorRtBackend, P], R],
) -> Callable[Concatenate[TensorRtBackend, P], R]:
    """``method`` with the device at the calling thread's hands: a service runs on one of its own."""

    @wraps(method)
    def call(self: TensorRtBackend, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._gpu.current():
            return method(self, *args, **kwargs)

    return call


class TensorRtBackend:
    """Runs an Orin bundle on the engines built from it; satisfies ``runtime.backend.Backend``.

    ``board``: the machine, which must be the one that the engine was built on. ``cuda_graphs`` None:
    on, unless ``SELFDRAFT_CUDA_GRAPHS`` is 0. Raises ``DeviceError`` without TensorRT, pycuda or
    the plugin library, and ``BundleError`` with what mends it for an engine of anything else.
    """

    name = "tensorrt"

    def __init__(
        self,
        bundle: Path,
        manifest: Manifest,
        *,
        board: Board | None = None,
        cuda_graphs: bool | None = None,
    ) -> None:
        tensorrt = import_tensorrt()
        check_graph_names(manifest)
        self._gpu = Gpu()
        self._engines = open_engines(tensorrt, self._gpu, bundle, manifest, board or Board())
        self._manifest = self._engines.limits.applied_to(manifest)
        embedding = upload_embedding(
            self._gpu, bundle, manifest, wanted_embedding(manifest.graphs["backbone"])
        )
        if cuda_graphs is None:
            cuda_graphs = os.environ.get(GRAPHS_VARIABLE, "1") != "0"
        self._binder = Binder(
            tensorrt, self._gpu, self._engines, manifest.graphs, embedding, captures=cuda_graphs
        )
        logits = next(o for o in self._backbone.outputs if o.name == LOGITS)
        self._row_dtype = np.dtype(logits.dtype)
        self._row = self._gpu.pinned(manifest.model.vocab_size * self._row_dtype.itemsize)

    @property
    def manifest(self) -> Manifest:
        """The bundle's, with the limits of the engines."""
        return self._manifest

    @property
    def limits(self) -> EngineLimits:
        """What the engines were built for."""
        return self._engines.limits

    @property
    def _backbone(self) -> GraphSpec:
        return self._manifest.graphs["backbone"]

    @_on_gpu
    def allocate(self, *, batch: int, capacity: int) -> TrtStates:
        """Zeroed states of every graph. Raises ``ConfigError`` beyond what the engine was built for."""
        limits = self._engines.limits
        if batch > limits.batch or capacity > limits.capacity:
            raise ConfigError(
                f"{batch} slots of {capacity} cache slots, the engine was built for "
                f"{limits.batch} of {limits.capacity} (context {limits.context})",
                hint="use a smaller --context, or build again: selfdraft build BUNDLE --batch N "
                "--context N",
            )
        return allocate_states(self._gpu, self._manifest, batch=batch, capacity=capacity)

    @_on_gpu
    def run_backbone(self, states: TrtStates, step: Step, input_ids: IntArray) -> BackboneOutput:
        """One pass of the backbone; returns when its candidates are on the host."""
        rows, logit_rows = input_ids.shape[1], step.row_index.shape[1]
        if np.any(step.attend_all * step.row_count):  # a prompt; idle slots do not count
            rows = max(rows, PROMPT_ROWS)
        elif rows > MAX_STEP_ROWS:
            raise ConfigError(
                f"a sparse prefill of {rows} rows at a time: from {PROMPT_ROWS} rows on, kernels "
                "round otherwise than those of decode steps, which sparse rows are to equal",
                hint=f"use --chunk {MAX_STEP_ROWS} or less, or leave it out",
            )
        found = self._binder.bind("backbone", states, rows=rows, logit_rows=logit_rows)
        found.start(step, input_ids)
        found.wait()
        found.sort_candidates()
        return BackboneOutput(
            hidden=found.output(self._backbone.taps[0]),
            logits=found.output(LOGITS),
            top_values=found.listed("top_values"),
            top_ids=found.listed("top_ids"),
            blocks_read=found.listed(BLOCKS_READ) if BLOCKS_READ in found.lists else None,
        )

    @_on_gpu
    def run_mtp(
        self,
        states: TrtStates,
        step: Step,
        input_ids: IntArray | TrtTensor,
        hidden: TrtTensor | FloatArray,
    ) -> MtpOutput:
        """Queue one pass of the MTP head; its arrays are there after ``to_host`` of its drafts.

        ``hidden`` of a prompt is longer than ``input_ids`` by its padding.
        """
        graph = self._manifest.graphs["mtp"]
        states.turn ^= 1  # A pass may read what the one before it wrote, and the host too.
        found = self._binder.bind(
            "mtp",
            states,
            rows=hidden.shape[1],
            logit_rows=step.row_index.shape[1],
            turn=states.turn,
        )
        found.start(step, input_ids, hidden)
        return MtpOutput(
            hidden=found.output(graph.taps[0]),
            draft_ids=found.output("draft_ids"),
            top_values=found.listed("top_values"),
            top_ids=found.listed("top_ids"),
        )

    @_on_gpu
    def read_rows(self, logits: TrtTensor, rows: list[tuple[int, int]]) -> FloatArray:
        """Host copies ``[len(rows), V]`` of logit rows ``(slot, index in row_index)``."""
        return np.stack([self._read_row(logits, row) for row in rows])

    @_on_gpu
    def read_entries(self, logits: TrtTensor, row: tuple[int, int], ids: IntArray) -> FloatArray:
        """Host copies ``[len(ids)]`` of single logits of row ``(slot, index in row_index)``."""
        if len(ids) > FEW_ENTRIES:
            return np.asarray(self._read_row(logits, row)[ids])
        size = self._row_dtype.itemsize
        start = self._row_address(logits, row)
        with cuda_errors("reading logits"):
            for place, token in enumerate(ids.tolist()):
                target = self._row[place * size : (place + 1) * size]
                self._gpu.download(target, start + token * size)
        self._gpu.synchronize()
        return self._row[: len(ids) * size].view(self._row_dtype).astype(np.float32)

    @_on_gpu
    def to_host(self, tensor: TrtTensor) -> NDArray[Any]:
        """A tensor on the host, once the pass that makes it is done."""
        tensor.owner.wait()
        if tensor.host is not None:
            return tensor.host
        array = np.empty(tensor.shape, tensor.view.dtype)
        self._gpu.fetch(array, tensor.view.address)
        return array

    @_on_gpu
    def export_states(
        self, states: TrtStates, *, slot: int, lengths: Mapping[str, int]
    ) -> dict[str, NDArray[Any]]:
        """Host copies of one slot's states by name, cut to ``lengths`` (tokens, by graph)."""
        return export_slot(self._gpu, self._manifest, states, slot=slot, lengths=lengths)

    @_on_gpu
    def import_states(
        self,
        states: TrtStates,
        *,
        slot: int,
        lengths: Mapping[str, int],
        arrays: Mapping[str, NDArray[Any]],
    ) -> None:
        """Put back what ``export_states`` gave for the same lengths."""
        import_slot(self._gpu, self._manifest, states, slot=slot, lengths=lengths, arrays=arrays)

    def _row_address(self, logits: TrtTensor, row: tuple[int, int]) -> int:
        slot, index = row
        vocab = logits.shape[2]
        place = (slot * logits.shape[1] + index) * vocab
        return logits.view.address + place * self._row_dtype.itemsize

    def _read_row(self, logits: TrtTensor, row: tuple[int, int]) -> FloatArray:
        with cuda_errors("reading a row of logits"):
            self._gpu.download(self._row, self._row_address(logits, row))
        self._gpu.synchronize()
        return self._row.view(self._row_dtype).astype(np.float32)
