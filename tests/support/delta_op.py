"""``GatedDeltaRule`` on its three bodies: NumPy oracle, torch, and ONNX Runtime in place."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.recurrent import state_length
from selfdraft.trt_plugins.gated_delta_rule.contract import (
    INPUTS,
    OP_DOMAIN,
    OUTPUTS,
    ROW_TYPES,
    STATES,
    GatedDeltaRule,
    empty_states,
)
from selfdraft.trt_plugins.gated_delta_rule.oracle import gated_delta_rule

Rows = dict[str, NDArray[Any]]
OPSET = 21


def random_rows(op: GatedDeltaRule, rng: np.random.Generator, batch: int, rows: int) -> Rows:
    """Rows of any kind: strong and weak writes, slow and quick decay."""
    heads = op.num_value_heads
    return {
        "x": rng.standard_normal((batch, rows, op.channels)).astype(ROW_TYPES[op.row_dtype]),
        "beta": rng.uniform(0.02, 0.98, (batch, rows, heads)).astype(np.float32),
        "log_decay": -(rng.exponential(0.5, (batch, rows, heads))).astype(np.float32),
    }


class Slots:
    """States of some slots, and how many tokens lie inside the recurrent one."""

    def __init__(self, op: GatedDeltaRule, run: Any, *, batch: int, fp32_as: Any) -> None:
        self.op, self.run = op, run
        self.states = empty_states(op, batch=batch, fp32_as=fp32_as)
        self.state_len = np.zeros(batch, dtype=np.int64)

    def step(
        self, rows: Rows, weight: NDArray[Any], past: NDArray[Any], counts: NDArray[Any]
    ) -> NDArray[Any]:
        """``y`` of a pass; the states move on."""
        replay = np.where(past > 0, past - self.state_len, 0)
        y = self.run(self.op, rows, self.states, weight, past, counts, replay)
        for slot in np.flatnonzero(counts):
            self.state_len[slot] = state_length(int(past[slot]), int(counts[slot]))
        return np.asarray(y)


def run_oracle(op: Any, rows: Rows, states: Rows, weight: Any, *lengths: Any) -> NDArray[Any]:
    past, counts, replay = lengths
    return gated_delta_rule(
        op, rows, states, conv_weight=weight, past_len=past, row_count=counts, replay_rows=replay
    )


def run_torch(op: Any, rows: Rows, states: Rows, weight: Any, *lengths: Any) -> NDArray[Any]:
    import torch

    from selfdraft.export.attention_op import StepTensors
    from selfdraft.export.delta_layer import Rows as TorchRows
    from selfdraft.export.delta_layer import gated_delta_rule as torch_rule

    past, counts, replay = (torch.from_numpy(array) for array in lengths)
    step = StepTensors(past, counts, past)
    step.replay_rows = replay
    given = TorchRows(*(torch.from_numpy(rows[name]) for name in ("x", "beta", "log_decay")))
    kept = [torch.from_numpy(states[name]) for name in STATES]
    y, updated = torch_rule(op, given, torch.from_numpy(weight), kept, step)
    for name, tensor in zip(STATES, updated, strict=True):
        states[name][...] = tensor.numpy()
    return y.numpy()


class OnnxRule:
    """A session over the op's body; states are bound as input and output at one address.

    ``checks``: the body of the check variant.
    """

    def __init__(self, op: GatedDeltaRule, *, checks: bool = False) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self._ort = ort
        model = rule_model(op, checks=checks).SerializeToString()
        self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def __call__(
        self, op: Any, rows: Rows, states: Rows, weight: Any, *lengths: Any
    ) -> NDArray[Any]:
        named = zip(("past_len", "row_count", "replay_rows"), lengths, strict=True)
        feed = {**rows, "conv_weight": weight, **states, **dict(named)}
        io = self._session.io_binding()
        values = {
            name: self._ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
            for name, array in feed.items()
        }
        for name, value in values.items():
            io.bind_ortvalue_input(name, value)
        io.bind_output("y")
        for name in STATES:
            io.bind_ortvalue_output(f"{name}_out", values[name])
        self._session.run_with_iobinding(io)
        for name in STATES:
            states[name][...] = values[name].numpy()
        y: NDArray[Any] = io.get_outputs()[0].numpy()
        return y


def rule_model(op: GatedDeltaRule, *, checks: bool = False) -> Any:
    """A model of one node that calls the body."""
    import onnx
    import onnx.parser
    from onnx import TensorProto, helper

    from selfdraft.trt_plugins.gated_delta_rule.onnx_body import function_text

    def info(name: str) -> Any:
        kind = TensorProto.FLOAT
        if name in ("past_len", "row_count", "replay_rows"):
            kind = TensorProto.INT64
        elif op.row_dtype == "fp16" and name in ("x", "conv_rows", "conv_rows_out"):
            kind = TensorProto.FLOAT16
        return helper.make_tensor_value_info(name, kind, None)

    text = function_text(op, name="Rule", opset=OPSET, checks=checks)
    function = onnx.parser.parse_function(text)
    node = helper.make_node("Rule", list(INPUTS), list(OUTPUTS), domain=OP_DOMAIN)
    graph = helper.make_graph([node], "rule", [*map(info, INPUTS)], [*map(info, OUTPUTS)])
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(OP_DOMAIN, 1)]
    return helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=10)
