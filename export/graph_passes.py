"""Graph surgery between tracing and saving: weights out, bodies in, weights back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
import onnx_ir.passes.common as passes

from selfdraft.export.delta_bodies import add_delta_bodies
from selfdraft.export.ort_fusions import fuse_skip_norms
from selfdraft.export.plugin_nodes import replace_matmul
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.int4_matmul.packing import matmul_of

MERGE_ROUNDS = 4
SMALL_ELEMENTS = 4096
DTYPES = {
    "F32": ir.DataType.FLOAT,
    "I64": ir.DataType.INT64,
    "U8": ir.DataType.UINT8,
    "I8": ir.DataType.INT8,
    "F16": ir.DataType.FLOAT16,
    "U16": ir.DataType.BFLOAT16,
}


def detach_weights(model: ir.Model, names: Mapping[str, str]) -> dict[str, ir.Value]:
    """Turn the parameters in ``names`` (module name → stored name) into graph inputs.

    So the passes never touch their bytes. Returns the values by stored name.
    """
    values = {}
    for parameter, stored in names.items():
        value = model.graph.initializers.pop(parameter, None)
        assert value is not None, f"the trace lost parameter {parameter}"
        value.const_value = None
        value.name = stored
        model.graph.inputs.append(value)
        values[stored] = value
    return values


def fill_buffers(model: ir.Model, buffers: Mapping[str, Any]) -> None:
    """Give the module's buffers (NumPy arrays by name) the values that fake tracing left out."""
    for name, array in buffers.items():
        value = model.graph.initializers[name]
        value.const_value = ir.tensor(array, name=name)


def inline_and_merge(model: ir.Model, *, opset: int, exact_rows: bool) -> None:
    """Inline the bodies of our custom ops and merge what their copies compute alike.

    ``exact_rows``: no kernels that round one row otherwise than several.
    """
    calls = _add_bodies(model, opset=opset, exact_rows=exact_rows)
    delta_rows = add_delta_bodies(model, opset=opset)
    passes.InlinePass()(model)
    _share_sizes(model, calls, delta_rows)
    merge(model)
    fuse_skip_norms(model)


def merge(model: ir.Model) -> None:
    """Fold constants, merge what is computed alike, drop what nothing reads."""
    from onnxscript.optimizer._constant_folding import FoldConstantsPass

    rounds = ir.passes.PassManager(
        [
            FoldConstantsPass(
                shape_inference=True,
                input_size_limit=SMALL_ELEMENTS,
                output_size_limit=SMALL_ELEMENTS,
            ),
            passes.IdentityEliminationPass(),
            passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
            passes.DeduplicateInitializersPass(size_limit=SMALL_ELEMENTS),
            passes.CommonSubexpressionEliminationPass(),
            passes.RemoveUnusedNodesPass(),
        ],
        steps=MERGE_ROUNDS,
        early_stop=True,
    )
    rounds(model)
    passes.RemoveUnusedOpsetsPass()(model)
    passes.ClearMetadataAndDocStringPass()(model)


def _share_sizes(
    model: ir.Model, calls: list[tuple[ir.Value, ir.Value]], delta_rows: list[ir.Value]
) -> None:
    """Read the row count from ``input_ids`` and the capacity from the first cache alone.

    All calls of a graph agree on both, but only the exporter knows: with one source for them
    everything that the bodies derive from sizes and lengths merges into one copy.
    """
    input_ids = next(value for value in model.graph.inputs if value.name == "input_ids")
    pairs = [(query, input_ids) for query, _ in calls]
    pairs += [(cache, calls[0][1]) for _, cache in calls]
    for value, source in [*pairs, *((rows, input_ids) for rows in delta_rows)]:
        for node, index in list(value.uses()):
            if node.op_type == "Shape" and value is not source:
                node.replace_input_with(index, source)


def _add_bodies(
    model: ir.Model, *, opset: int, exact_rows: bool
) -> list[tuple[ir.Value, ir.Value]]:
    """Attach one function for each attribute set that occurs, and rename its calls after it.

    Returns query and key cache of every call, in order.
    """
    import onnx.parser

    from selfdraft.trt_plugins.cached_attention.contract import OP_DOMAIN, OP_NAME
    from selfdraft.trt_plugins.cached_attention.onnx_body import function_text

    known: dict[CachedAttention, str] = {}
    calls = []
    for node in model.graph:
        if (node.domain, node.op_type) != (OP_DOMAIN, OP_NAME):
            continue
        for index in range(3):
            node.replace_input_with(index, _before_flattening(node.inputs[index]))
        query, cache = node.inputs[0], node.inputs[3]
        assert query is not None and cache is not None
        calls.append((query, cache))
        op = _op_of(node)
        if op not in known:
            known[op] = f"{OP_NAME}_{len(known)}"
            text = function_text(
                op,
                name=known[op],
                opset=opset,
                split_heads=True,
                one_row_kernel=not exact_rows,
            )
            function = ir.serde.deserialize_function(onnx.parser.parse_function(text))
            model.functions[function.identifier()] = function
        node.op_type = known[op]
        node.version = None
        for name in list(node.attributes):
            node.attributes.pop(name)
    return calls


def _before_flattening(value: ir.Value | None) -> ir.Value:
    """The heads ``[B, n, heads, d]`` that the module flattened for the op."""
    assert value is not None
    producer = value.producer()
    assert producer is not None and producer.op_type == "Reshape", "q, k, v are flattened heads"
    heads = producer.inputs[0]
    assert heads is not None and heads.shape is not None and len(heads.shape) == 4
    return heads


def _op_of(node: ir.Node) -> CachedAttention:
    attributes: dict[str, Any] = {name: a.value for name, a in node.attributes.items()}
    return CachedAttention(**attributes)


def attach_weights(
    model: ir.Model,
    values: Mapping[str, ir.Value],
    stored: Mapping[str, Any],
    *,
    location: str,
) -> None:
    """Make each detached weight an initializer in ``location``, or quantised codes behind
    DequantizeLinear; an act-order becomes a Gather on what the matrix multiplies.

    ``stored[name]`` has dtype (safetensors name), shape, offset and length in bytes.
    """
    for name, value in values.items():
        model.graph.inputs.remove(value)
        narrow = _half_of(value, stored)
        if narrow is not None:
            _attach_half(model, value, narrow, stored[narrow], location=location)
            continue
        if name in stored:
            _register(model, value, stored[name], DTYPES[stored[name].dtype], location)
            continue
        if f"{name}.order" in stored:
            _attach_order(model, value, stored, location=location)
        if f"{name}.strips" in stored:
            _attach_strips(model, value, stored, location=location)
            continue
        _attach_quantised(model, value, stored, location=location)


def _half_of(value: ir.Value, stored: Mapping[str, Any]) -> str | None:
    """The 16-bit tensor behind an fp32 matrix, where it is stored so."""
    assert value.name is not None
    if f"{value.name}.bf16" in stored:
        return f"{value.name}.bf16"
    if value.name in stored and stored[value.name].dtype == "F16":
        return value.name if value.dtype == ir.DataType.FLOAT else None
    return None


def _attach_half(model: ir.Model, value: ir.Value, name: str, place: Any, *, location: str) -> None:
    """A 16-bit constant, widened: ONNX Runtime folds the Cast into fp32 when it opens the graph."""
    kind = DTYPES[place.dtype]
    assert value.name is not None
    wide = value.name
    value.name = f"{wide}.fp32"
    narrow = ir.Value(name=name, type=ir.TensorType(kind))
    _register(model, narrow, place, kind, location)
    node = ir.node("Cast", [narrow], {"to": ir.DataType.FLOAT}, name=f"{wide}.cast")
    model.graph.insert_before(model.graph[0], node)
    out = node.outputs[0]
    out.name, out.dtype = f"{wide}.widened", ir.DataType.FLOAT
    value.replace_all_uses_with(out)


def _attach_quantised(
    model: ir.Model, value: ir.Value, stored: Mapping[str, Any], *, location: str
) -> None:
    """Codes, scales and zero points where there are any, dequantised in blocks of inputs."""
    assert value.name is not None and value.shape is not None
    name, shape = value.name, tuple(value.shape.numpy())
    scales = stored[f"{name}.scale"]
    if f"{name}.int8" in stored:
        codes, dtype = "int8", ir.DataType.INT8
    else:
        codes, dtype = "int4", ir.DataType.INT4
    parts = [(codes, shape, dtype), ("scale", scales.shape, ir.DataType.FLOAT)]
    if f"{name}.zero" in stored:
        parts.append(("zero", scales.shape, ir.DataType.INT4))
    inputs = []
    for part, dims, kind in parts:
        tensor = ir.Value(name=f"{name}.{part}", shape=ir.Shape(dims), type=ir.TensorType(kind))
        _register(model, tensor, stored[f"{name}.{part}"], kind, location, tuple(dims))
        inputs.append(tensor)
    width = shape[0] // scales.shape[0]
    node = ir.node("DequantizeLinear", inputs, {"axis": 0, "block_size": width}, name=f"{name}.dq")
    model.graph.insert_before(model.graph[0], node)
    out = node.outputs[0]
    out.name, out.dtype = f"{name}.dequantized", ir.DataType.FLOAT
    value.replace_all_uses_with(out)


def _attach_strips(
    model: ir.Model, value: ir.Value, stored: Mapping[str, Any], *, location: str
) -> None:
    """``Int4MatMul`` in place of every product with the matrix, its packed parts as constants."""
    assert value.name is not None and value.shape is not None
    rows, columns = value.shape.numpy()
    inputs, shapes = [], []
    for part in ("strips", "strip_scale"):
        name = f"{value.name}.{part}"
        place = stored[name]
        tensor = ir.Value(name=name, type=ir.TensorType(DTYPES[place.dtype]))
        _register(model, tensor, place, DTYPES[place.dtype], location)
        inputs.append(tensor)
        shapes.append(place.shape)
    op = matmul_of(*shapes, in_features=rows, out_features=columns)
    for user, position in list(value.uses()):
        assert (user.op_type, position) == ("MatMul", 1), f"{value.name} serves {user.op_type}"
        replace_matmul(model, user, op, inputs, name=value.name.removesuffix(".weight"))


def _attach_order(
    model: ir.Model, value: ir.Value, stored: Mapping[str, Any], *, location: str
) -> None:
    """Bring what the matrix multiplies into the order of its stored inputs."""
    name = f"{value.name}.order"
    order = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64))
    _register(model, order, stored[name], ir.DataType.INT64, location)
    for index, (user, position) in enumerate(list(value.uses())):
        assert (user.op_type, position) == ("MatMul", 1), f"{name} serves {user.op_type}"
        node = ir.node("Gather", [user.inputs[0], order], {"axis": -1}, name=f"{name}.{index}")
        model.graph.insert_before(user, node)
        user.replace_input_with(0, node.outputs[0])


def _register(
    model: ir.Model,
    value: ir.Value,
    place: Any,
    dtype: ir.DataType,
    location: str,
    shape: tuple[int, ...] | None = None,
) -> None:
    assert value.name is not None
    dims = ir.Shape(shape or place.shape)
    value.const_value = ir.ExternalTensor(
        location, place.offset, place.length, dtype, shape=dims, name=value.name
    )
    value.shape, value.dtype = dims, dtype
    model.graph.register_initializer(value)
