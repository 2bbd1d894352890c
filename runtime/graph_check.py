"""Whether a loaded graph is the one that the manifest describes: names, types and sizes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from selfdraft.errors import BundleError
from selfdraft.manifest import Dim, GraphSpec, Manifest

TYPE_NAMES = {
    "float32": "tensor(float)",
    "float16": "tensor(float16)",
    "bfloat16": "tensor(bfloat16)",
    "int64": "tensor(int64)",
    "int8": "tensor(int8)",
}


class LoadedGraph(Protocol):
    """What an ``onnxruntime.InferenceSession`` tells about itself."""

    def get_inputs(self) -> list[Any]: ...

    def get_outputs(self) -> list[Any]: ...


def check_graph_names(manifest: Manifest) -> None:
    """Raise ``BundleError`` unless there is a graph for every part of the model."""
    wanted = {"backbone", "mtp"} if manifest.has_mtp else {"backbone"}
    if set(manifest.graphs) != wanted:
        raise BundleError(
            f"the manifest has the graphs {sorted(manifest.graphs)}, its model needs "
            f"{sorted(wanted)}",
            hint="export the bundle again",
        )


def check_graph(session: LoadedGraph, graph: GraphSpec) -> None:
    """Raise ``BundleError`` naming the first tensor that differs from the manifest."""
    states_in = [(state.input, state.dtype, state.shape) for state in graph.states]
    states_out = [(state.output, state.dtype, state.shape) for state in graph.states]
    inputs = [(tensor.name, tensor.dtype, tensor.shape) for tensor in graph.inputs]
    outputs = [(tensor.name, tensor.dtype, tensor.shape) for tensor in graph.outputs]
    _compare(graph.file, "input", [*inputs, *states_in], session.get_inputs())
    _compare(graph.file, "output", [*outputs, *states_out], session.get_outputs())
    for tap in graph.taps or ("",):
        if tap not in {name for name, _, _ in outputs}:
            raise _differs(graph.file, f"has no output {tap!r} for a tap")


def _compare(
    file: str,
    word: str,
    described: Iterable[tuple[str, str, tuple[Dim, ...]]],
    loaded: Iterable[Any],
) -> None:
    found = {tensor.name: tensor for tensor in loaded}
    for name, dtype, shape in described:
        if name not in found:
            raise _differs(file, f"has no {word} {name!r}")
        tensor = found.pop(name)
        if tensor.type != TYPE_NAMES.get(dtype):
            raise _differs(file, f"has {tensor.type} as {word} {name}, the manifest {dtype!r}")
        if tuple(tensor.shape) != shape:
            raise _differs(
                file,
                f"has shape {list(tensor.shape)} as {word} {name}, the manifest {list(shape)}",
            )
    if found:
        raise _differs(file, f"has the {word} {min(found)!r}, which the manifest does not name")


def _differs(file: str, how: str) -> BundleError:
    return BundleError(f"{file} {how}", hint="export the bundle again")
