"""The ONNX Runtime backend: states, embedding and step inputs bound once, updated in place.

Every buffer that crosses the seam is allocated once for each shape and bound to the session, so
a step costs no allocation and no copy. States are bound as input and output at one address.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import BundleError, ConfigError, DeviceError
from selfdraft.manifest import GraphSpec, Manifest
from selfdraft.runtime.attention_record import BLOCKS_READ, check_attention
from selfdraft.runtime.backend import (
    BackboneOutput,
    DeviceTensor,
    FloatArray,
    IntArray,
    MtpOutput,
    Step,
)
from selfdraft.runtime.embedding import load_table
from selfdraft.runtime.graph_check import check_graph, check_graph_names
from selfdraft.runtime.ort_buffers import Binding, HostTensor, OrtStates, new_buffer
from selfdraft.runtime.slot_cache import used_parts, write_parts

if TYPE_CHECKING:
    import onnxruntime as ort

log = logging.getLogger(__name__)

INT4_ACCURACY_LEVEL = "4"
"""int8 arithmetic inside int4 matmuls (docs/architecture.md, Exact)."""
LARGE_PASS_BYTES = 128 * 2**20
"""Attention weights of a pass from which the engine gives its memory back afterwards. Passes of a long
prompt differ in shape, and an arena that keeps what each of them needed holds twice as much."""
LONG_PASS_ROWS = 16
"""Rows from which a pass is a chunk of a prompt, whose shape comes once."""
STEP_FIELDS = ("past_len", "row_count", "attend_all", "row_index")
BINDINGS_KEPT = 160
"""Bindings cached for each graph; one for every (batch, rows, logit rows, parity) in use."""


class OrtBackend:
    """Runs a ``cpu`` bundle on ONNX Runtime; satisfies ``runtime.backend.Backend``."""

    name = "ort"

    def __init__(
        self,
        bundle: Path,
        manifest: Manifest,
        *,
        threads: int | None = None,
        profile: Path | None = None,
    ) -> None:
        """Open the sessions of ``bundle``. ``threads`` None: one for each core.

        ``profile``: prefix of an ONNX Runtime profile, written by ``end_profiling``.
        Raises ``DeviceError`` without onnxruntime, ``BundleError`` when a graph does not load.
        """
        self._threads = _checked_threads(threads)
        ort = _onnxruntime()
        check_graph_names(manifest)
        check_attention(manifest)
        self._manifest = manifest
        self._table = _bound_table(bundle, manifest)
        self._sessions = {
            name: _open_session(
                ort,
                bundle / graph.file,
                threads=self._threads,
                profile=profile,
                alone=len(manifest.graphs) == 1,
            )
            for name, graph in manifest.graphs.items()
        }
        for name, graph in manifest.graphs.items():
            check_graph(self._sessions[name], graph)
        self._shrinking = ort.RunOptions()
        self._shrinking.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        self._turn = 0

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    @property
    def threads(self) -> int:
        """Threads inside one operator."""
        return self._threads

    def allocate(self, *, batch: int, capacity: int) -> OrtStates:
        """Zeroed states of every graph (pages are touched on first use)."""
        tensors = {
            state.name: HostTensor.zeros(state.sizes(batch=batch, capacity=capacity), state.dtype)
            for graph in self._manifest.graphs.values()
            for state in graph.states
        }
        return OrtStates(batch=batch, capacity=capacity, tensors=tensors)

    def narrow(self, states: OrtStates, *, first: int, count: int) -> OrtStates:
        """Slots ``first`` to ``first + count`` of ``states``, in place."""
        return states.narrow(first, count)

    def run_backbone(self, states: OrtStates, step: Step, input_ids: IntArray) -> BackboneOutput:
        """One pass of ``backbone.onnx``; outputs are views of bound buffers."""
        binding = self._bind("backbone", states, step, rows=input_ids.shape[1])
        _fill(binding, step)
        binding.inputs["input_ids"].array[...] = input_ids
        self._run("backbone", binding, step, rows=input_ids.shape[1])
        out = binding.outputs
        return BackboneOutput(
            hidden=out[self._manifest.graphs["backbone"].taps[0]],
            logits=out["logits"],
            top_values=out["top_values"].array,
            top_ids=out["top_ids"].array,
            blocks_read=out[BLOCKS_READ].array if BLOCKS_READ in out else None,
        )

    def run_mtp(
        self,
        states: OrtStates,
        step: Step,
        input_ids: IntArray | DeviceTensor,
        hidden: DeviceTensor | FloatArray,
    ) -> MtpOutput:
        """One pass of ``mtp.onnx``; tensors of the pass before are bound as they are."""
        if not isinstance(hidden, HostTensor):
            hidden = HostTensor.of(np.ascontiguousarray(hidden))
        rows = hidden.array.shape[1]
        # Two sets of buffers in turn: a pass may read what the one before it wrote.
        self._turn ^= 1
        binding = self._bind("mtp", states, step, rows=rows, turn=self._turn)
        _fill(binding, step)
        if isinstance(input_ids, HostTensor):
            binding.rebind("input_ids", input_ids)
        else:
            ids = binding.inputs["input_ids"]
            ids.array[...] = input_ids
            binding.rebind("input_ids", ids)
        binding.rebind("hidden", hidden)
        self._run("mtp", binding, step, rows=rows)
        out = binding.outputs
        return MtpOutput(
            hidden=out[self._manifest.graphs["mtp"].taps[0]],
            draft_ids=out["draft_ids"],
            top_values=out["top_values"].array,
            top_ids=out["top_ids"].array,
        )

    def read_rows(self, logits: DeviceTensor, rows: list[tuple[int, int]]) -> FloatArray:
        """Copies ``[len(rows), V]`` of logit rows ``(slot, index in row_index)``."""
        slots, indices = zip(*rows, strict=True)
        return np.array(logits.array[list(slots), list(indices)])

    def read_entries(self, logits: DeviceTensor, row: tuple[int, int], ids: IntArray) -> FloatArray:
        """Copies ``[len(ids)]`` of single logits of row ``(slot, index in row_index)``."""
        return np.asarray(logits.array[row][ids])

    def to_host(self, tensor: DeviceTensor) -> NDArray[Any]:
        """The host view of a tensor (it lives on the host already)."""
        array: NDArray[Any] = tensor.array
        return array

    def export_states(
        self, states: OrtStates, *, slot: int, lengths: Mapping[str, int]
    ) -> dict[str, NDArray[Any]]:
        """Views of one slot's states by name, cut to ``lengths`` (tokens, by graph)."""
        arrays = {name: tensor.array for name, tensor in states.tensors.items()}
        return used_parts(self._manifest, arrays, slot=slot, lengths=lengths)

    def import_states(
        self,
        states: OrtStates,
        *,
        slot: int,
        lengths: Mapping[str, int],
        arrays: Mapping[str, NDArray[Any]],
    ) -> None:
        """Put back what ``export_states`` gave for the same lengths."""
        parts = self.export_states(states, slot=slot, lengths=lengths)
        write_parts(parts, arrays)

    def end_profiling(self) -> dict[str, str]:
        """Write the profiles asked for at construction; file by graph."""
        return {name: session.end_profiling() for name, session in self._sessions.items()}

    def _run(self, name: str, binding: Binding, step: Step, *, rows: int) -> None:
        # Options cost a step some 40 µs in onnxruntime's own wrapper, so that it gets none.
        long = rows >= LONG_PASS_ROWS and self._weight_bytes(step, rows) >= LARGE_PASS_BYTES
        options = self._shrinking if long else None
        try:
            self._sessions[name].run_with_iobinding(binding.io, options)
        except RuntimeError as error:
            raise DeviceError(
                f"{name}.onnx failed in onnxruntime: {' '.join(str(error).split())[:200]}",
                hint="check the bundle with: selfdraft verify BUNDLE",
            ) from error

    def _weight_bytes(self, step: Step, rows: int) -> int:
        """Of one copy of a dense layer's attention weights ``[B, Hq, rows, T]``, fp32."""
        end = int(step.past_len.max()) + rows
        return 4 * len(step.past_len) * self._manifest.model.num_heads * rows * end

    def _bind(
        self, name: str, states: OrtStates, step: Step, *, rows: int, turn: int = 0
    ) -> Binding:
        logit_rows = step.row_index.shape[1]
        key = (name, states.batch, rows, logit_rows, turn)
        binding = states.bindings.pop(key, None)
        if binding is None:
            if len(states.bindings) >= BINDINGS_KEPT:
                states.bindings.pop(next(iter(states.bindings)))  # the one used longest ago
            sizes = {
                "batch": states.batch,
                "rows": rows,
                "logit_rows": logit_rows,
                "capacity": states.capacity,
            }
            binding = self._new_binding(name, sizes)
        states.bindings[key] = binding
        binding.use(states, self._manifest.graphs[name])
        return binding

    def _new_binding(self, name: str, sizes: dict[str, int]) -> Binding:
        graph: GraphSpec = self._manifest.graphs[name]
        io = self._sessions[name].io_binding()
        inputs, outputs = {}, {}
        for tensor in graph.inputs:
            if tensor.name == "hidden":
                continue  # bound to the producer's buffer at every pass
            if tensor.name in self._table:
                inputs[tensor.name] = self._table[tensor.name]
            else:
                inputs[tensor.name] = new_buffer(tensor.shape, tensor.dtype, sizes)
            io.bind_ortvalue_input(tensor.name, inputs[tensor.name].value)
        for tensor in graph.outputs:
            outputs[tensor.name] = new_buffer(tensor.shape, tensor.dtype, sizes)
            io.bind_ortvalue_output(tensor.name, outputs[tensor.name].value)
        return Binding(io=io, inputs=inputs, outputs=outputs)


def _fill(binding: Binding, step: Step) -> None:
    for name in STEP_FIELDS:
        binding.inputs[name].array[...] = getattr(step, name)


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise DeviceError(
            "onnxruntime is not installed", hint="pip install 'selfdraft[cpu]'"
        ) from None
    return onnxruntime


def _checked_threads(threads: int | None) -> int:
    """Every thread spins while it waits: far more of them than cores never finish."""
    cores = os.cpu_count() or 1
    most = max(64, 4 * cores)
    if threads is not None and not 1 <= threads <= most:
        raise ConfigError(
            f"threads is {threads}, this machine has {cores} cores",
            hint=f"choose 1 to {most}, or leave it out",
        )
    return threads or cores


def _open_session(
    ort: Any, path: Path, *, threads: int, profile: Path | None, alone: bool
) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", INT4_ACCURACY_LEVEL)
    if not alone:
        # Each session has threads of its own. Left spinning after a pass, those of one graph take
        # the cores from the other's: a speculative step then takes twice as long.
        options.add_session_config_entry("session.force_spinning_stop", "1")
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = f"{profile}-{path.stem}"
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises its own bare types
        first = str(error).splitlines()[0]
        raise BundleError(
            f"{path.name} does not load in onnxruntime {ort.__version__}: {first}",
            hint="check the bundle with: selfdraft verify BUNDLE",
        ) from error


def _bound_table(bundle: Path, manifest: Manifest) -> dict[str, HostTensor]:
    """The embedding by graph input: one buffer for both graphs, in its stored type."""
    table = load_table(bundle, manifest)
    if manifest.precision.embedding == "bf16":
        return {name: HostTensor.of_bf16(patterns) for name, patterns in table.items()}
    return {name: HostTensor.of(array) for name, array in table.items()}
