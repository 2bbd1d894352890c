"""One node with the function body of Orin's check variant on ONNX Runtime, states bound in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper
from support.kernel_step import KernelStep

from selfdraft.trt_plugins.cached_attention.contract import BLOCKS_READ
from selfdraft.trt_plugins.cached_attention.onnx_masked_body import masked_function_text

OPSET = 21
Arrays = dict[str, NDArray[Any]]


def one_node_model(
    text: str, inputs: Arrays, outputs: dict[str, tuple[Any, int]]
) -> onnx.ModelProto:
    """A model that calls the function ``text``; ``outputs``: dtype and rank by name."""
    function = onnx.parser.parse_function(text)
    node = helper.make_node(function.name, list(inputs), list(outputs), domain=function.domain)
    forms = {name: (array.dtype, array.ndim) for name, array in inputs.items()} | outputs
    infos = {
        name: helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(np.dtype(dtype)),
            [f"{name}_{axis}" for axis in range(rank)],
        )
        for name, (dtype, rank) in forms.items()
    }
    graph = helper.make_graph(
        [node], "op", [infos[name] for name in inputs], [infos[name] for name in outputs]
    )
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(function.domain, 1)]
    return helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=10)


def run_model(
    model: onnx.ModelProto, inputs: Arrays, in_place: Sequence[str] = ()
) -> list[NDArray[Any]]:
    """Outputs that are not bound; ``in_place``: inputs bound as ``<name>_out`` too."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options)
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
    io = session.io_binding()
    for name, value in values.items():
        io.bind_ortvalue_input(name, value)
    bound = {f"{name}_out": values[name] for name in in_place}
    for output in session.get_outputs():
        if output.name in bound:
            io.bind_ortvalue_output(output.name, bound[output.name])
        else:
            io.bind_output(output.name)
    session.run_with_iobinding(io)
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, io.get_outputs(), strict=True))
    return [value.numpy() for name, value in found.items() if name not in bound]


def run_masked_body(step: KernelStep) -> tuple[NDArray[np.float16], Arrays, int | None]:
    """``y [B, n, Hq, d]``, states and counter; what ``random_step`` poisoned is zero."""
    op = step.op
    batch, rows = step.q.shape[:2]
    states = {name: np.nan_to_num(array).copy() for name, array in step.states.items()}
    flat = {name: getattr(step, name).reshape(batch, rows, -1) for name in "qkv"}
    lengths = {name: getattr(step, name) for name in ("past_len", "row_count", "attend_all")}
    inputs: Arrays = {**flat, **states, **lengths}
    outputs: dict[str, tuple[Any, int]] = {"y": (np.float16, 3)}
    outputs |= {f"{name}_out": (array.dtype, array.ndim) for name, array in states.items()}
    if BLOCKS_READ in op.outputs:
        outputs[BLOCKS_READ] = (np.int64, 1)
    text = masked_function_text(op, name="Op", opset=OPSET)
    results = run_model(one_node_model(text, inputs, outputs), inputs, in_place=list(states))
    counter = int(results[1][0]) if len(results) > 1 else None
    return results[0].reshape(step.q.shape), states, counter
