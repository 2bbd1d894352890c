"""Function bodies of ``GatedDeltaRule`` for the nodes of a traced graph."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from selfdraft.trt_plugins.gated_delta_rule.contract import OP_DOMAIN, OP_NAME, GatedDeltaRule
from selfdraft.trt_plugins.gated_delta_rule.onnx_body import function_text


def add_delta_bodies(model: ir.Model, *, opset: int) -> list[ir.Value]:
    """Attach one function for each attribute set, and rename its calls after it.

    Returns the rows ``x [B, n, C]`` of every call, in order.
    """
    import onnx.parser

    known: dict[GatedDeltaRule, str] = {}
    rows = []
    for node in model.graph:
        if (node.domain, node.op_type) != (OP_DOMAIN, OP_NAME):
            continue
        op = _op_of(node)
        if op not in known:
            known[op] = f"{OP_NAME}_{len(known)}"
            text = function_text(op, name=known[op], opset=opset)
            function = ir.serde.deserialize_function(onnx.parser.parse_function(text))
            model.functions[function.identifier()] = function
        assert node.inputs[0] is not None
        rows.append(node.inputs[0])
        node.op_type, node.version = known[op], None
        node.attributes.clear()
    return rows


def _op_of(node: ir.Node) -> GatedDeltaRule:
    attributes: dict[str, Any] = {name: a.value for name, a in node.attributes.items()}
    return GatedDeltaRule(**attributes)
