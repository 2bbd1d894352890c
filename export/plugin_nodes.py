"""Custom operators of Orin graphs: nodes that the plugin library runs, and no function bodies.

TensorRT's parser looks for local functions before plugins, so a body would silently take the place of the
kernels. Every node names its plugin's version and namespace, which the parser asks for.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from selfdraft.manifest import PluginNode
from selfdraft.trt_plugins.cached_attention import contract as attention
from selfdraft.trt_plugins.gated_delta_rule import contract as delta
from selfdraft.trt_plugins.int4_matmul import contract as matmul
from selfdraft.trt_plugins.int4_matmul.contract import Int4MatMul

OPS = {
    (attention.OP_DOMAIN, attention.OP_NAME): attention.OP_VERSION,
    (delta.OP_DOMAIN, delta.OP_NAME): delta.OP_VERSION,
    (matmul.OP_DOMAIN, matmul.OP_NAME): matmul.OP_VERSION,
}
"""Version of each operator by domain and name; the domain is the plugin's namespace."""
ROLE = {"version": "plugin_version", "namespace": "plugin_namespace"}
"""Attributes by which TensorRT's ONNX parser finds a plugin (IPluginRegistry::getCreator)."""
ALIAS = "alias_states"
"""1: the plugin tells TensorRT that it writes states in place (docs/tensorrt.md)."""
FOR_PLUGINS = frozenset({*ROLE.values(), ALIAS})
"""Attributes that are no part of an operator's contract."""


LAYER_OPS = {attention.OP_NAME: "attention", delta.OP_NAME: "delta"}
"""What a layer's one operator with states is called in the node's name."""


def prepare_layers(model: ir.Model, graph: str) -> None:
    """Name every node that keeps states after its layer and address it to its plugin.

    A layer has one such node, so that their order is the order of the layers.
    """
    found = [node for node in model.graph if node.op_type in LAYER_OPS]
    for layer, node in enumerate(found):
        where = f"layers.{layer}" if graph == "backbone" else "layer"
        node.name = f"{graph}.{where}.{LAYER_OPS[node.op_type]}"
        node.attributes[ALIAS] = ir.AttrInt64(ALIAS, 0)
        _address(node)


def replace_matmul(
    model: ir.Model, node: ir.Node, op: Int4MatMul, weights: Sequence[ir.Value], *, name: str
) -> None:
    """Put ``Int4MatMul`` in place of a MatMul; ``weights`` are its packed codes and scales."""
    own = ir.node(
        matmul.OP_NAME,
        [node.inputs[0], *weights],
        dict(op.onnx_attributes()),
        domain=matmul.OP_DOMAIN,
        name=name,
    )
    _address(own)
    own.outputs[0].type = ir.TensorType(ir.DataType.FLOAT16)
    own.outputs[0].name, node.outputs[0].name = node.outputs[0].name, f"{name}.replaced"
    model.graph.insert_before(node, own)
    node.outputs[0].replace_all_uses_with(own.outputs[0], replace_graph_outputs=True)
    model.graph.remove(node, safe=True)
    model.graph.opset_imports[matmul.OP_DOMAIN] = matmul.OP_VERSION


def plugin_nodes(model: ir.Model) -> tuple[PluginNode, ...]:
    """The nodes that only a plugin library runs, in graph order."""
    return tuple(
        PluginNode(
            name=str(node.name),
            op=node.op_type,
            version=node.attributes[ROLE["version"]].as_string(),
            namespace=node.attributes[ROLE["namespace"]].as_string(),
        )
        for node in model.graph
        if (node.domain, node.op_type) in OPS
    )


def _address(node: ir.Node) -> None:
    version = OPS[node.domain, node.op_type]
    for attribute in (
        ir.AttrString(ROLE["version"], str(version)),
        ir.AttrString(ROLE["namespace"], node.domain),
    ):
        node.attributes[attribute.name] = attribute
