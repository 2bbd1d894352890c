"""Fusions for ONNX Runtime that its own optimiser does not make."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
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


def fuse_rotary(model: ir.Model) -> int:
    """One ``RotaryEmbedding`` for each rotate-half product of queries and keys.

    The angles of the step's rows serve as its table, looked up by row number. Returns how many
    were fused.
    """
    found = [match for node in model.graph if (match := _rotation(node)) is not None]
    if not found:
        return 0
    table = _RotaryTable(model, found[0])
    for match in found:
        table.rotate(match)
    model.graph.opset_imports[CONTRIB] = 1
    return len(found)


class _Rotation(NamedTuple):
    """``x [B, n, heads, d]`` times (cos, sin) gives ``result``."""

    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    result: ir.Node


def _rotation(node: ir.Node) -> _Rotation | None:
    """The rotation whose halves ``node`` splits: x·cos + swapped(x)·sin, or None."""
    x = node.inputs[0] if node.inputs else None
    if node.op_type != "Split" or len(node.outputs) != 2 or x is None:
        return None
    swapped = _only_user(node.outputs[1], "Concat")
    if swapped is None or list(swapped.inputs) != [node.outputs[1], node.outputs[0]]:
        return None
    second = _only_user(swapped.outputs[0], "Mul")
    result = second and _only_user(second.outputs[0], "Add")
    if second is None or result is None:
        return None
    first = next(v.producer() for v in result.inputs if v is not second.outputs[0] and v)
    assert first is not None and first.op_type == "Mul" and x in first.inputs
    return _Rotation(x, _other(first, x), _other(second, swapped.outputs[0]), result)


def _only_user(value: ir.Value, op_type: str) -> ir.Node | None:
    users = [user for user, _ in value.uses()]
    return users[0] if len(users) == 1 and users[0].op_type == op_type else None


def _other(node: ir.Node, value: ir.Value) -> ir.Value:
    return next(v for v in node.inputs if v is not None and v is not value)


class _RotaryTable:
    """Half tables ``[B n, d/2]`` and row numbers ``[B, n]``, added once to a graph."""

    def __init__(self, model: ir.Model, first: _Rotation) -> None:
        self._model = model
        halves = [self._half(value) for value in (first.cos, first.sin)]
        anchor = first.result.inputs[0].producer()  # type: ignore[union-attr]
        assert anchor is not None
        self._anchor = anchor
        width = halves[0].shape[-1] if halves[0].shape is not None else None
        assert isinstance(width, int)
        self._flat = self._constant("rotary_flat", [0, 0, -1])
        shape = self._constant("rotary_table_shape", [-1, width])
        self._tables = [self._add("Reshape", [half, shape]) for half in halves]
        input_ids = next(v for v in model.graph.inputs if v.name == "input_ids")
        rows = self._add("Shape", [input_ids])
        axes = self._constant("rotary_axes", [0])
        count = self._add("ReduceProd", [rows, axes], keepdims=0)
        numbers = self._add(
            "Range", [self._scalar("rotary_0", 0), count, self._scalar("rotary_1", 1)]
        )
        self._positions = self._add("Reshape", [numbers, rows])

    def rotate(self, match: _Rotation) -> None:
        """Replace one rotation; what it leaves unused is removed later."""
        assert match.x.shape is not None
        heads, width = match.x.shape[2], match.x.shape[3]
        self._anchor = match.result
        wide = self._add("Reshape", [match.x, self._flat])
        turned = self._add("RotaryEmbedding", [wide, self._positions, *self._tables], CONTRIB)
        shape = self._constant(f"rotary_heads_{heads}", [0, 0, int(heads), int(width)])  # type: ignore[arg-type]
        result = self._add("Reshape", [turned, shape])
        match.result.outputs[0].replace_all_uses_with(result)

    def _half(self, doubled: ir.Value) -> ir.Value:
        """cos or sin ``[B, n, d/2]`` behind their doubled form ``[B, n, 1, d]``."""
        unsqueeze = doubled.producer()
        assert unsqueeze is not None and unsqueeze.inputs[0] is not None
        concat = unsqueeze.inputs[0].producer()
        assert concat is not None and concat.op_type == "Concat" and concat.inputs[1] is not None
        return concat.inputs[1]

    def _add(
        self, op_type: str, inputs: list[ir.Value], domain: str = "", **attributes: int
    ) -> ir.Value:
        node = ir.node(op_type, inputs, attributes or None, domain=domain)
        self._model.graph.insert_before(self._anchor, node)
        return node.outputs[0]

    def _constant(self, name: str, values: list[int]) -> ir.Value:
        return self._register(name, np.array(values, np.int64))

    def _scalar(self, name: str, number: int) -> ir.Value:
        return self._register(name, np.array(number, np.int64))

    def _register(self, name: str, array: np.ndarray[Any, Any]) -> ir.Value:
        known = self._model.graph.initializers.get(name)
        if known is not None:
            return known
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype))
        value.const_value = tensor
        self._model.graph.register_initializer(value)
        return value
