"""Making a pass: buffers of its own, addresses told to a context of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from selfdraft.errors import ConfigError, DeviceError
from selfdraft.manifest import BLOCK_TOKENS, GraphName, GraphSpec, TensorSpec
from selfdraft.runtime.trt.block import Block
from selfdraft.runtime.trt.engines import Engines
from selfdraft.runtime.trt.gpu import DeviceBuffer, Gpu
from selfdraft.runtime.trt.library import last_error
from selfdraft.runtime.trt.limits import PROFILES, Sizes, resolve
from selfdraft.runtime.trt.passes import Pass, PassKey
from selfdraft.runtime.trt.states import TrtStates

if TYPE_CHECKING:
    import tensorrt as trt

EMBEDDING, HIDDEN, LOGITS = "embedding", "hidden", "logits"


class Binder:
    """Makes the passes of one bundle; what all of them share is allocated here, once."""

    def __init__(
        self,
        tensorrt: Any,
        gpu: Gpu,
        engines: Engines,
        graphs: Mapping[str, GraphSpec],
        embedding: DeviceBuffer,
        *,
        captures: bool,
    ) -> None:
        self._tensorrt = tensorrt
        self._gpu = gpu
        self._engines = engines
        self._graphs = graphs
        self._embedding = embedding
        self._captures = captures
        self._scratch = gpu.allocate(engines.scratch_bytes)

    def bind(
        self, name: GraphName, states: TrtStates, *, rows: int, logit_rows: int, turn: int = 0
    ) -> Pass:
        """The pass of a graph over ``rows`` rows, idle; made on first use, then the same object.

        Raises ``ConfigError`` for shapes that the engine was not built for.
        """
        limits = self._engines.limits
        _check(
            *("rows", rows, limits.prefill_rows),
            hint="build it for more (selfdraft build BUNDLE --chunk N), or use a smaller --chunk",
        )
        _check(
            *("logit_rows", logit_rows, limits.decode_rows),
            hint="ask for the logits of fewer rows in one pass",
        )
        profile = limits.profile_of(rows)
        decodes = profile == "decode"
        # A step repeats, a chunk of a prompt may have any length: its pass takes all of them.
        key = PassKey(name, rows, logit_rows, turn) if decodes else PassKey(name, 0, 0, turn)
        sizes = {
            "batch": states.batch,
            "rows": rows,
            "logit_rows": logit_rows,
            "capacity": states.capacity,
            "blocks": states.capacity // BLOCK_TOKENS,
        }
        found = states.passes.get(key)
        if found is None:
            largest = sizes if decodes else limits.largest("prefill") | {"batch": states.batch}
            context = self._context(name, PROFILES.index(profile))
            found = self._new_pass(self._graphs[name], context, states, largest, captures=decodes)
            states.passes[key] = found
        found.wait()
        found.set_shapes(sizes, lambda tensor: resolve(tensor.shape, sizes))
        return found

    def _context(self, name: str, profile: int) -> trt.IExecutionContext:
        engine: trt.ICudaEngine = self._engines.by_graph[name]
        strategy = self._tensorrt.ExecutionContextAllocationStrategy.USER_MANAGED
        context: trt.IExecutionContext | None = engine.create_execution_context(strategy)
        if context is None:
            raise self._refused(f"{name} has no execution context")
        if not context.set_optimization_profile_async(profile, self._gpu.stream):
            raise self._refused(f"{name} takes no profile {PROFILES[profile]}")
        context.set_device_memory(self._scratch.address, self._scratch.num_bytes)
        return context

    def _new_pass(
        self,
        graph: GraphSpec,
        context: trt.IExecutionContext,
        states: TrtStates,
        largest: Sizes,
        *,
        captures: bool,
    ) -> Pass:
        gpu = self._gpu
        own, hidden, kept, listed = buffer_groups(graph)
        found = Pass(
            gpu=gpu,
            graph=graph,
            context=context,
            logger=self._engines.logger,
            inputs=Block(gpu, own, largest),
            hidden=Block(gpu, hidden, largest) if hidden else None,
            kept={tensor.name: Block(gpu, [tensor], largest) for tensor in kept},
            lists=Block(gpu, listed, largest),
            sizes=largest,
            done=gpu.event(),
            captures=captures and self._captures,
            moved=[
                (states.buffers[state.name], states.output(state))
                for state in graph.states
                if not state.aliased
            ],
        )
        self._tell_addresses(found, states, largest)
        return found

    def _tell_addresses(self, found: Pass, states: TrtStates, sizes: Sizes) -> None:
        """Tell the context where everything lies. A state that is written in place has one address."""
        addresses = {EMBEDDING: self._embedding.address}
        blocks = [found.inputs, found.lists, *found.kept.values()]
        for block in [*blocks, *([found.hidden] if found.hidden else [])]:
            addresses |= {name: block.device(name, sizes).address for name in block.names}
        context: trt.IExecutionContext = found.context
        for state in found.graph.states:
            address = states.buffers[state.name].address
            addresses |= {state.input: address, state.output: states.output(state).address}
            shape = state.sizes(batch=states.batch, capacity=states.capacity)
            if not context.set_input_shape(state.input, shape):
                raise self._refused(f"{found.graph.file} takes no {state.name} of shape {shape}")
        for name, address in addresses.items():
            if not context.set_tensor_address(name, address):
                raise self._refused(f"{found.graph.file} takes no address for {name}")

    def _refused(self, what: str) -> DeviceError:
        return DeviceError(
            f"{what}: {last_error(self._engines.logger)}",
            hint="check the board with: selfdraft doctor",
        )


def _check(name: str, value: int, most: int, *, hint: str) -> None:
    if value > most:
        raise ConfigError(f"a pass of {value} {name}, the engine was built for {most}", hint=hint)


class BufferGroups(NamedTuple):
    """The tensors of a graph that a pass has memory of its own for, by what happens to them."""

    inputs: list[TensorSpec]
    """Copied to the device together."""
    hidden: list[TensorSpec]
    """The MTP head's input from another pass."""
    kept: list[TensorSpec]
    """Stay on the device: hidden states and logits."""
    listed: list[TensorSpec]
    """Copied to the host together."""


def buffer_groups(graph: GraphSpec) -> BufferGroups:
    """``graph``'s inputs and outputs but the embedding and the states, which passes share."""
    kept = [t for t in graph.outputs if t.name in graph.taps or t.name == LOGITS]
    return BufferGroups(
        inputs=[t for t in graph.inputs if t.name not in (EMBEDDING, HIDDEN)],
        hidden=[t for t in graph.inputs if t.name == HIDDEN],
        kept=kept,
        listed=[t for t in graph.outputs if t not in kept],
    )


def wanted_embedding(graph: GraphSpec) -> TensorSpec:
    """The table as a graph takes it."""
    return next(tensor for tensor in graph.inputs if tensor.name == EMBEDDING)
