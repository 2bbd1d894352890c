"""One-node models of the plugin nodes of an exported graph, for NVIDIA's parser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper

from selfdraft.trt_plugins.gated_delta_rule.contract import INPUTS

DOMAIN = "selfdraft"
HALF, FLOAT = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT


def distinct_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """The first node of every operator and attribute set."""
    seen: set[Any] = set()
    for node in model.graph.node:
        key = (node.op_type, *sorted(a.SerializeToString() for a in node.attribute))
        if node.domain == DOMAIN and key not in seen:
            seen.add(key)
            yield node


def one_node_model(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """``node`` alone; weights are zeros of their shape and type, activations are inputs."""
    boundary = {value.name: value for value in (*model.graph.input, *model.graph.output)}
    weights = {value.name: value for value in model.graph.initializer}
    values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    inputs, constants = [], []
    for place, name in enumerate(node.input):
        if name in weights:
            constants.append(_zeros(weights[name]))
        elif name in boundary:
            inputs.append(boundary[name])
        else:
            inputs.append(_activation(node, place, values))
    result = FLOAT if node.op_type == "GatedDeltaRule" else HALF
    outputs = [
        boundary.get(name) or helper.make_tensor_value_info(name, result, None)
        for name in node.output
    ]
    graph = helper.make_graph([node], "one", inputs, outputs, constants)
    return helper.make_model(
        graph, opset_imports=list(model.opset_import), ir_version=model.ir_version
    )


def _activation(node: onnx.NodeProto, place: int, values: dict[str, Any]) -> onnx.ValueInfoProto:
    """What other nodes compute for input ``place``."""
    kind, shape = HALF, ["batch", "rows", 0]
    if node.op_type == "Int4MatMul":
        shape[2] = values["in_features"]
    elif node.op_type == "CachedAttention":
        heads = values["num_heads"] if place == 0 else values["num_kv_heads"]
        shape[2] = heads * values["head_dim"]
    elif INPUTS[place] == "x":
        values_size = values["num_value_heads"] * values["value_dim"]
        shape[2] = 2 * values["num_key_heads"] * values["key_dim"] + values_size
    elif INPUTS[place] == "replay_rows":
        kind, shape = onnx.TensorProto.INT64, ["batch"]
    else:
        kind, shape[2] = FLOAT, values["num_value_heads"]
    return helper.make_tensor_value_info(node.input[place], kind, shape)


def _zeros(weight: onnx.TensorProto) -> onnx.TensorProto:
    dtype = helper.tensor_dtype_to_np_dtype(weight.data_type)
    raw = np.zeros(tuple(weight.dims), dtype).tobytes()
    return helper.make_tensor(weight.name, weight.data_type, list(weight.dims), raw, raw=True)
