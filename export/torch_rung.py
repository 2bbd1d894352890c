"""The torch rung of the ladder of proof: the bundle's graphs as eager torch modules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from selfdraft.export.graph import build_module, call_arguments, graph_ops, stored_name
from selfdraft.export.stored_matrix import stored_values
from selfdraft.manifest import Manifest


class TorchGraphs:
    """Both graphs of a bundle in torch, fp32, with the weights that the bundle stores."""

    def __init__(self, bundle: Path, manifest: Manifest) -> None:
        """Read the weights of ``bundle``; quantised matrices are unpacked."""
        self._manifest = manifest
        tensors = _read_tensors(bundle / manifest.weights_file)
        self._modules = {name: _filled_module(name, manifest, tensors) for name in manifest.graphs}

    def run(self, name: str, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Outputs of graph ``name`` by name, states included; ``feed`` has every input."""
        graph = self._manifest.graphs[name]
        tensors = [_tensor(feed[t.name], t.dtype) for t in graph.inputs]
        tensors += [_tensor(feed[s.input], s.dtype) for s in graph.states]
        with torch.no_grad():
            results = self._modules[name](*call_arguments(graph, tensors))
        names = [t.name for t in graph.outputs] + [s.output for s in graph.states]
        return {key: value.numpy() for key, value in zip(names, results, strict=True)}


def _tensor(array: NDArray[Any], dtype: str) -> torch.Tensor:
    """A tensor over an array; bf16 comes as its 16-bit patterns."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def _read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    from safetensors.numpy import load_file

    tensors: dict[str, NDArray[Any]] = load_file(str(path))
    return tensors


def _filled_module(
    name: str, manifest: Manifest, tensors: Mapping[str, NDArray[Any]]
) -> torch.nn.Module:
    ops = graph_ops(name, manifest.model, manifest.attention, kv_dtype=manifest.precision.kv)
    module = build_module(name, manifest.model, ops, candidates=manifest.limits.candidates)
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            shape = tuple(parameter.shape)
            values = stored_values(tensors, stored_name(name, key), shape=shape)
            parameter.copy_(torch.from_numpy(values))
    return module
