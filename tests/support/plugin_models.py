"""One-node models of the plugin nodes of an exported graph, for NVIDIA's parser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper

DOMAIN = "selfdraft"


def distinct_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """The first node of every operator and attribute set."""
    seen: set[Any] = set()
    for node in model.graph.node:
        key = (node.op_type, *sorted(a.SerializeToString() for a in node.attribute))
        if node.domain == DOMAIN and key not in seen:
            seen.add(key)
            yield node


def one_node_model(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """``node`` alone; weights are zeros of their shape and type, activations fp16 inputs."""
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
            width = _width(node.op_type, place, values)
            shape = ["batch", "rows", width]
            inputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT16, shape))
    outputs = [
        boundary.get(name) or helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT16, None)
        for name in node.output
    ]
    graph = helper.make_graph([node], "one", inputs, outputs, constants)
    return helper.make_model(
        graph, opset_imports=list(model.opset_import), ir_version=model.ir_version
    )


def _width(op_type: str, place: int, values: dict[str, Any]) -> int:
    if op_type == "Int4MatMul":
        return int(values["in_features"])
    heads = values["num_heads"] if place == 0 else values["num_kv_heads"]
    return int(heads * values["head_dim"])


def _zeros(weight: onnx.TensorProto) -> onnx.TensorProto:
    dtype = helper.tensor_dtype_to_np_dtype(weight.data_type)
    raw = np.zeros(tuple(weight.dims), dtype).tobytes()
    return helper.make_tensor(weight.name, weight.data_type, list(weight.dims), raw, raw=True)
