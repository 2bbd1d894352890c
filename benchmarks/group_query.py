"""``GroupQueryAttention`` of onnxruntime over given caches, one layer after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from selfdraft.manifest import ModelSpec
from selfdraft.runtime.ort import HostTensor

OPSET = 20
CONTRIB = "com.microsoft"


class GroupQuerySteps:
    """Dense attention of one row in every layer: what the operator alone costs at a length.

    ``caches``: keys and values ``[1, Hkv, S, d]`` of each layer, bound as past and present, so that
    the operator appends in place as our own body does. No matmuls, no rotary embedding.
    """

    def __init__(
        self,
        model: ModelSpec,
        caches: Sequence[tuple[HostTensor, HostTensor]],
        *,
        length: int,
        threads: int,
    ) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        graph = group_query_model(model, len(caches))
        self._session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self._io = self._session.io_binding()
        self._kept: list[HostTensor] = []
        random = np.random.default_rng(0)
        for name, heads in (("q", model.num_heads), ("k", model.num_kv_heads), ("v", 0)):
            width = (heads or model.num_kv_heads) * model.head_dim
            self._bind(name, random.standard_normal((1, 1, width), dtype=np.float32))
        self._bind("last", np.array([length - 1], dtype=np.int32))
        self._bind("total", np.array(length, dtype=np.int32))
        for layer, pair in enumerate(caches):
            for name, cache in zip(("k", "v"), pair, strict=True):
                self._io.bind_ortvalue_input(f"past_{name}_{layer}", cache.value)
                self._io.bind_ortvalue_output(f"present_{name}_{layer}", cache.value)
            width = model.num_heads * model.head_dim
            output = HostTensor.zeros((1, 1, width), "float32")
            self._kept.append(output)
            self._io.bind_ortvalue_output(f"y_{layer}", output.value)
        self.outputs = self._kept[-len(caches) :]
        """Attention ``[1, 1, Hq d]`` of each layer."""

    def _bind(self, name: str, array: Any) -> None:
        tensor = HostTensor.of(array)
        self._kept.append(tensor)
        self._io.bind_ortvalue_input(name, tensor.value)

    def prepare(self) -> None:
        """Nothing: a step does not advance."""

    def step(self) -> int:
        """One pass at one length; the same cache slot is written every time."""
        self._session.run_with_iobinding(self._io)
        return 1


def group_query_model(model: ModelSpec, layers: int) -> bytes:
    """A serialised graph of ``layers`` independent GroupQueryAttention nodes."""
    from onnx import TensorProto, helper

    d, heads, kv_heads = model.head_dim, model.num_heads, model.num_kv_heads
    real, whole = TensorProto.FLOAT, TensorProto.INT32

    def value(name: str, kind: int, shape: list[Any]) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    inputs = [value("q", real, [1, 1, heads * d])]
    inputs += [value(name, real, [1, 1, kv_heads * d]) for name in ("k", "v")]
    inputs += [value("last", whole, [1]), value("total", whole, [])]
    outputs, nodes = [], []
    for layer in range(layers):
        past = [f"past_{name}_{layer}" for name in ("k", "v")]
        present = [f"present_{name}_{layer}" for name in ("k", "v")]
        cache = [1, kv_heads, "S", d]
        inputs += [value(name, real, cache) for name in past]
        outputs += [value(f"y_{layer}", real, [1, 1, heads * d])]
        outputs += [value(name, real, cache) for name in present]
        nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                ["q", "k", "v", *past, "last", "total"],
                [f"y_{layer}", *present],
                domain=CONTRIB,
                num_heads=heads,
                kv_num_heads=kv_heads,
            )
        )
    graph = helper.make_graph(nodes, "group_query", inputs, outputs)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
    made = helper.make_model(graph, opset_imports=opsets)
    made.ir_version = 10
    serialised: bytes = made.SerializeToString()
    return serialised
