"""What the double's parser knows of an ONNX file, and the session that runs its check variant."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

from selfdraft.manifest import Dim
from selfdraft.runtime.graph_check import TYPE_NAMES

STANDARD = ("", "ai.onnx", "com.microsoft")
"""Domains of nodes that ONNX Runtime runs itself; those of all others need a plugin."""


@dataclass(frozen=True, kw_only=True)
class OnnxTensor:
    name: str
    dtype: str
    shape: tuple[Dim, ...]


@dataclass(frozen=True, kw_only=True)
class OnnxNode:
    name: str
    op: str
    version: str
    namespace: str


@dataclass(frozen=True, kw_only=True)
class OnnxModel:
    """Boundary and custom nodes of a graph, without its weights."""

    path: Path
    inputs: tuple[OnnxTensor, ...]
    outputs: tuple[OnnxTensor, ...]
    custom: tuple[OnnxNode, ...]

    @property
    def aliases(self) -> dict[str, str]:
        """Output by input, of every state that a plugin writes.

        Not ``state_len``: kernels of TensorRT's own compute it, which may write before others read.
        """
        outputs = {tensor.name for tensor in self.outputs}
        named = {tensor.name: f"{tensor.name}_out" for tensor in self.inputs}
        return {i: o for i, o in named.items() if o in outputs and i not in ("hidden", "state_len")}


@functools.cache
def read_model(path: Path) -> OnnxModel:
    graph = onnx.load(str(path), load_external_data=False).graph
    session = open_session(path)
    return OnnxModel(
        path=path,
        inputs=tuple(_tensor(value) for value in session.get_inputs()),
        outputs=tuple(_tensor(value) for value in session.get_outputs()),
        custom=tuple(_node(node) for node in graph.node if node.domain not in STANDARD),
    )


def _tensor(value: Any) -> OnnxTensor:
    dtypes = {name: dtype for dtype, name in TYPE_NAMES.items()}
    return OnnxTensor(name=value.name, dtype=dtypes[value.type], shape=tuple(value.shape))


def _node(node: onnx.NodeProto) -> OnnxNode:
    attributes = {
        a.name: a.s.decode() for a in node.attribute if a.type == onnx.AttributeProto.STRING
    }
    return OnnxNode(
        name=node.name,
        op=node.op_type,
        version=attributes.get("plugin_version", ""),
        namespace=attributes.get("plugin_namespace", ""),
    )


@functools.cache
def open_session(path: Path) -> ort.InferenceSession:
    """The session of the graph's check variant, in the folder ``BUNDLE.check``, else of the graph."""
    variant = path.parent.with_name(f"{path.parent.name}.check") / path.name
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    options.add_session_config_entry("session.force_spinning_stop", "1")
    chosen = variant if variant.exists() else path
    return ort.InferenceSession(str(chosen), options, providers=["CPUExecutionProvider"])
