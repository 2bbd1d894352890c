"""Fusions for ONNX Runtime that its own optimiser does not make."""

from __future__ import annotations

import onnx_ir as ir

CONTRIB = "com.microsoft"
NORM_CHAIN = ("Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul")


def fuse_skip_norms(model: ir.Model) -> int:
    """One ``SkipSimplifiedLayerNormalization`` for each residual sum and the RMSNorm after it.

    Returns how many were fused. The sum stays available to the next residual.
    """
    fused = 0
    for node in list(model.graph):
        chain = _norm_chain(node)
        if chain is None:
            continue
        total = chain[0].inputs[0]
        addition = total.producer() if total is not None else None
        if addition is None or addition.op_type != "Add" or not _is_residual(addition):
            continue
        _replace(model, addition, chain)
        fused += 1
    if fused:
        model.graph.opset_imports[CONTRIB] = 1
    return fused


def _norm_chain(node: ir.Node) -> list[ir.Node] | None:
    """The nodes of ``x / sqrt(mean(x²) + eps) * w`` that begin at ``node``, or None."""
    chain = [node]
    for op_type in NORM_CHAIN[1:]:
        users = [user for user, _ in chain[-1].outputs[0].uses()]
        if len(users) != 1 or users[0].op_type != op_type:
            return None
        chain.append(users[0])
    return chain if node.op_type == NORM_CHAIN[0] else None


def _is_residual(addition: ir.Node) -> bool:
    """Whether one side comes out of a matrix: that of attention or MLP."""
    producers = [value.producer() for value in addition.inputs if value is not None]
    return any(producer is not None and producer.op_type == "MatMul" for producer in producers)


def _replace(model: ir.Model, addition: ir.Node, chain: list[ir.Node]) -> None:
    epsilon = next(
        value.const_value
        for value in chain[2].inputs
        if value is not None and value.const_value is not None
    )
    weight = next(value for value in chain[-1].inputs if value is not chain[-2].outputs[0])
    normed, total = chain[-1].outputs[0], addition.outputs[0]
    outputs = [ir.Value(name=normed.name), ir.Value(name=""), ir.Value(name="")]
    node = ir.Node(
        CONTRIB,
        "SkipSimplifiedLayerNormalization",
        [*addition.inputs, weight],
        [ir.AttrFloat32("epsilon", float(epsilon.numpy().reshape(-1)[0]))],
        outputs=[*outputs, ir.Value(name=total.name)],
    )
    model.graph.insert_before(addition, node)
    normed.replace_all_uses_with(node.outputs[0], replace_graph_outputs=True)
    total.replace_all_uses_with(node.outputs[3], replace_graph_outputs=True)
    model.graph.remove([addition, *chain], safe=True)
