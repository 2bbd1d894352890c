"""One ``CachedAttention`` node on ONNX Runtime, from its function body, states bound in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper

from selfdraft.trt_plugins.cached_attention.contract import BLOCKS_READ, CachedAttention
from selfdraft.trt_plugins.cached_attention.onnx_body import function_text

OPSET = 21
STATE_TYPES = {
    "fp32": (TensorProto.FLOAT, np.float32),
    "int8": (TensorProto.INT8, np.int8),
}


class OnnxOp:
    """A session over the op's body alone."""

    def __init__(self, op: CachedAttention, *, one_row_kernel: bool = False) -> None:
        self.op = op
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self.blocks_read: int | None = None
        self._session = ort.InferenceSession(
            _model(op, one_row_kernel=one_row_kernel).SerializeToString(), options
        )

    def __call__(
        self,
        q: NDArray[np.float32],
        k: NDArray[np.float32],
        v: NDArray[np.float32],
        states: dict[str, NDArray[Any]],
        *,
        past_len: NDArray[np.int64],
        row_count: NDArray[np.int64],
        attend_all: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        """``y [B, n, Hq d]``; ``states`` are updated in place, ``blocks_read`` is kept."""
        feed = {"q": q, "k": k, "v": v, **states}
        feed |= {"past_len": past_len, "row_count": row_count, "attend_all": attend_all}
        io = self._session.io_binding()
        values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feed.items()}
        for name, value in values.items():
            io.bind_ortvalue_input(name, value)
        io.bind_output("y")
        if BLOCKS_READ in self.op.outputs:
            io.bind_output(BLOCKS_READ)
        for name in states:
            io.bind_ortvalue_output(f"{name}_out", values[name])
        self._session.run_with_iobinding(io)
        results = [value.numpy() for value in io.get_outputs()]
        self.blocks_read = int(results[1][0]) if BLOCKS_READ in self.op.outputs else None
        y: NDArray[np.float32] = results[0]
        return y


def _model(op: CachedAttention, *, one_row_kernel: bool) -> onnx.ModelProto:
    text = function_text(op, name="Op", opset=OPSET, one_row_kernel=one_row_kernel)
    function = onnx.parser.parse_function(text)
    node = helper.make_node("Op", list(op.inputs), list(op.outputs), domain=function.domain)
    types = {"past_len": TensorProto.INT64, "row_count": TensorProto.INT64}
    types |= {"attend_all": TensorProto.INT64, "k_scale": TensorProto.FLOAT16}
    types |= {"v_scale": TensorProto.FLOAT16, "summary": TensorProto.FLOAT16}
    types |= {"k_cache": STATE_TYPES[op.kv_dtype][0], "v_cache": STATE_TYPES[op.kv_dtype][0]}
    ranks = {"q": 3, "k": 3, "v": 3, "k_cache": 4, "v_cache": 4, "k_scale": 3, "v_scale": 3}
    ranks |= {"summary": 5, "past_len": 1, "row_count": 1, "attend_all": 1, "y": 3}
    ranks[BLOCKS_READ] = 1
    types[BLOCKS_READ] = TensorProto.INT64

    def info(name: str) -> onnx.ValueInfoProto:
        base = name.removesuffix("_out")
        shape = [f"{base}_{axis}" for axis in range(ranks[base])]
        return helper.make_tensor_value_info(name, types.get(base, TensorProto.FLOAT), shape)

    graph = helper.make_graph(
        [node], "op", [info(name) for name in op.inputs], [info(name) for name in op.outputs]
    )
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(function.domain, 1)]
    imports.append(helper.make_opsetid("com.microsoft", 1))
    return helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=10)
