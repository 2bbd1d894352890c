"""One graph bound for passes of one shape: its buffers, its execution context, its CUDA graph.

Addresses never change. A pass over a decode step's rows is queued once as TensorRT queues it, which
lets it set up what it sets up lazily, then recorded; from then on the record is launched. Each
record has a context of its own, since it is tied to that context's shapes and addresses. A state that
standard operators compute is copied to its place behind the pass (docs/tensorrt.md, States).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import DeviceError
from selfdraft.manifest import GraphSpec, TensorSpec
from selfdraft.runtime.backend import FloatArray, IntArray, Step
from selfdraft.runtime.trt.block import Block, DeviceView
from selfdraft.runtime.trt.capture import CapturedGraph
from selfdraft.runtime.trt.gpu import DeviceBuffer, Event, Gpu, cuda_errors
from selfdraft.runtime.trt.library import last_error
from selfdraft.runtime.trt.limits import Sizes

if TYPE_CHECKING:
    import tensorrt as trt

STEP_FIELDS = ("past_len", "row_count", "attend_all", "row_index")


class PassKey(NamedTuple):
    """What a pass is made for. ``rows`` 0: any number of rows of the prefill profile."""

    graph: str
    rows: int
    logit_rows: int
    turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrtTensor:
    """A tensor of a pass, on the device; ``host`` is its copy where the pass makes one."""

    view: DeviceView
    owner: Pass
    host: NDArray[Any] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.view.shape


@dataclass(slots=True, kw_only=True)
class Pass:
    """See the module. Made by ``runtime.trt.binding``."""

    gpu: Gpu
    graph: GraphSpec
    context: trt.IExecutionContext
    logger: trt.ILogger
    inputs: Block
    """Tokens and the numbers of the step."""
    hidden: Block | None
    """The MTP head's input."""
    kept: dict[str, Block]
    """Outputs that stay on the device: hidden states and logits."""
    lists: Block
    """Outputs that go to the host: candidates, drafts, counters."""
    sizes: Sizes
    """Of the pass that ran last."""
    captures: bool
    """Whether its shapes are fixed, so that it can be recorded."""
    moved: Sequence[tuple[DeviceBuffer, DeviceBuffer]]
    """States that the graph must not write in place, and where it writes them."""
    done: Event
    """End of the newest run."""
    pending: bool = False
    """Whether nobody waited for it yet."""
    captured: CapturedGraph | None = None
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Input shapes that the context was told."""

    def start(
        self,
        step: Step,
        input_ids: IntArray | TrtTensor,
        hidden: TrtTensor | FloatArray | None = None,
    ) -> None:
        """Queue the inputs and the pass. Raises ``DeviceError`` where CUDA or TensorRT refuses."""
        with cuda_errors(f"running {self.graph.file}"):
            self.fill(step, input_ids)
            if hidden is not None:
                self.fill_hidden(hidden)
            self.run()

    def fill(self, step: Step, input_ids: IntArray | TrtTensor) -> None:
        """Queue the inputs; no run may be pending, since it may still read the host's copies."""
        assert not self.pending
        for name in STEP_FIELDS:
            self.inputs.host(name, self.sizes)[...] = getattr(step, name)
        own = self.inputs.device("input_ids", self.sizes)
        if isinstance(input_ids, TrtTensor):
            self.inputs.upload()
            self._copy(own, input_ids)
        else:
            ids = self.inputs.host("input_ids", self.sizes)
            ids[:, input_ids.shape[1] :] = 0  # padding
            ids[:, : input_ids.shape[1]] = input_ids
            self.inputs.upload()

    def fill_hidden(self, hidden: TrtTensor | FloatArray) -> None:
        """Queue the MTP head's hidden states ``[B, n, H]``."""
        assert self.hidden is not None
        if isinstance(hidden, TrtTensor):
            self._copy(self.hidden.device("hidden", self.sizes), hidden)
        else:
            self.hidden.host("hidden", self.sizes)[...] = hidden
            self.hidden.upload()

    def run(self) -> None:
        """Queue the pass and the copy of its lists."""
        if self.captured is not None:
            self.captured.launch(self.gpu.stream)
        else:
            self._enqueue()
            if self.captures:
                self.captured = self.gpu.capture(self._enqueue)
        self.done.record()
        self.pending = True

    def wait(self) -> None:
        """Return when the newest run is done, and its lists are on the host."""
        if self.pending:
            self.done.wait()
            self.pending = False

    def output(self, name: str) -> TrtTensor:
        """An output of the newest run."""
        if name in self.lists:
            view, host = self.lists.device(name, self.sizes), self.lists.host(name, self.sizes)
            return TrtTensor(view=view, owner=self, host=host)
        return TrtTensor(view=self.kept[name].device(name, self.sizes), owner=self)

    def listed(self, name: str) -> NDArray[Any]:
        """The host's copy of an output, there after ``wait``."""
        return self.lists.host(name, self.sizes)

    def sort_candidates(self) -> None:
        """Order the host's candidates by value, equal ones by id: TensorRT's TopK leaves that open."""
        values, ids = self.listed("top_values"), self.listed("top_ids")
        order = np.lexsort((ids, -values))
        values[...] = np.take_along_axis(values, order, axis=-1)
        ids[...] = np.take_along_axis(ids, order, axis=-1)

    def set_shapes(self, sizes: Sizes, shape_of: Callable[[TensorSpec], tuple[int, ...]]) -> None:
        """Tell the context the shapes of the inputs, where they changed."""
        if self.shapes and sizes == self.sizes:
            return
        self.sizes = sizes
        for tensor in self.graph.inputs:
            shape = shape_of(tensor)
            if self.shapes.get(tensor.name) != shape:
                if not self.context.set_input_shape(tensor.name, shape):
                    raise self._failed(f"takes no {tensor.name} of shape {list(shape)}")
                self.shapes[tensor.name] = shape

    def _enqueue(self) -> None:
        if not self.context.execute_async_v3(self.gpu.stream):
            raise self._failed("does not run")
        for state, written in self.moved:
            self.gpu.copy(state.address, written.address, state.num_bytes)
        self.lists.download()

    def _copy(self, target: DeviceView, source: TrtTensor) -> None:
        assert target.shape == source.view.shape, (target.shape, source.view.shape)
        assert target.dtype == source.view.dtype, (target.dtype, source.view.dtype)
        self.gpu.copy(target.address, source.view.address, target.num_bytes)

    def _failed(self, how: str) -> DeviceError:
        return DeviceError(
            f"{self.graph.file} {how}: {last_error(self.logger)}",
            hint="check the board with: selfdraft doctor",
        )
