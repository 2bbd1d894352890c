"""GatedDeltaRule's TensorRT plugin: its methods called in a process without TensorRT."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.delta_kernels import DeltaKernels
from support.delta_op import Rows, Slots, random_rows
from support.kernel_step import poisoned
from support.plugin_probe import (
    BUILD,
    TYPES,
    Plugin,
    Probe,
    Refused,
    Tensor,
    probe,
    resized,
    tensor,
)

from selfdraft.trt_plugins.gated_delta_rule.contract import (
    INPUTS,
    OP_NAME,
    OP_VERSION,
    OUTPUTS,
    STATES,
    GatedDeltaRule,
)
from selfdraft.trt_plugins.gated_delta_rule.launches import DeltaShape

OP = GatedDeltaRule(
    num_key_heads=2, num_value_heads=6, key_dim=64, value_dim=64, taps=4, row_dtype="fp16"
)
OPS = {
    "groups of 3": OP,
    "wide values, two taps": replace(OP, num_value_heads=2, value_dim=128, taps=2),
    "wide keys, eight taps": replace(OP, num_key_heads=1, num_value_heads=1, key_dim=128, taps=8),
    "published heads": replace(OP, num_value_heads=4, key_dim=128, value_dim=128),
}


@pytest.fixture(scope="module")
def plugins() -> Probe:
    return probe()


@pytest.fixture(autouse=True)
def fresh_driver(plugins: Probe) -> None:
    plugins.reset_driver()


def delta(plugins: Probe, op: GatedDeltaRule, *, phase: int = 1, **changes: Any) -> Plugin:
    return plugins.create(OP_NAME, {**op.onnx_attributes(), **changes}, phase=phase)


def boundary(op: GatedDeltaRule, *, batch: int, rows: int) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs and outputs of a node."""
    gate = tensor("float32", (batch, rows, op.num_value_heads))
    states = [
        tensor(op.state_types[name], (batch, *dims)) for name, dims in op.state_shapes.items()
    ]
    inputs = [
        tensor("float16", (batch, rows, op.channels)),
        gate,
        gate,
        tensor("float32", (op.channels, op.taps)),
        *states,
        *[tensor("int64", (batch,))] * 3,
    ]
    return inputs, [tensor("float32", (batch, rows, op.value_size)), *states]


def test_creator_has_the_attributes_of_the_contract(plugins: Probe) -> None:
    (creator,) = [c for c in plugins.creators() if c["name"] == OP_NAME]
    assert (creator["version"], creator["namespace"]) == (str(OP_VERSION), "selfdraft")
    named = {name for name, _, _ in creator["fields"]}
    assert named == set(OP.onnx_attributes()) | {"alias_states"}


@pytest.mark.parametrize("name", OPS)
def test_attributes_survive_a_plan_and_a_clone(plugins: Probe, name: str) -> None:
    op = OPS[name]
    plugin = delta(plugins, op, phase=BUILD)
    for one in (plugin, plugin.round_trip(), plugin.round_trip().clone(), plugin.clone()):
        assert one.fields() == {**op.onnx_attributes(), "alias_states": 0}
        assert one.names() == "GatedDeltaRule 1 selfdraft PLUGIN_V3ONE_BUILD 2"
    wide = delta(plugins, op, taps=np.int64(3), row_dtype=b"fp16")
    assert (wide.fields()["taps"], wide.fields()["row_dtype"]) == (3, "fp16")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_key_heads": 0}, "num_key_heads is 0, must be at least 1"),
        ({"num_value_heads": 0}, "num_value_heads is 0, must be a multiple of num_key_heads 2"),
        ({"num_value_heads": 5}, "num_value_heads is 5, must be a multiple of num_key_heads 2"),
        ({"key_dim": 96}, "key_dim is 96, must be 64 or 128"),
        ({"value_dim": 256}, "value_dim is 256, must be 64 or 128"),
        ({"taps": 1}, "taps is 1, must be 2 to 8"),
        ({"taps": 9}, "taps is 9, must be 2 to 8"),
        ({"row_dtype": "fp32"}, "row_dtype is fp32, must be fp16"),
        ({"alias_states": 2}, "alias_states is 2, must be 0 or 1"),
        ({"taps": 4.0}, "taps is not an integer"),
        ({"row_dtype": 16}, "row_dtype is not a string"),
    ],
)
def test_attribute_that_no_kernel_implements_is_refused_by_name(
    plugins: Probe, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(Refused, match=f"GatedDeltaRule.{told}"):
        delta(plugins, OP, **changes)


def test_missing_attribute_is_refused_by_name(plugins: Probe) -> None:
    for name in OP.onnx_attributes():
        attributes = {k: v for k, v in OP.onnx_attributes().items() if k != name}
        with pytest.raises(Refused, match=f"GatedDeltaRule.{name} is missing"):
            plugins.create(OP_NAME, attributes)


@pytest.mark.parametrize("name", OPS)
def test_types_shapes_and_formats_are_those_of_the_contract(plugins: Probe, name: str) -> None:
    op = OPS[name]
    plugin = delta(plugins, op, phase=BUILD)
    inputs, outputs = boundary(op, batch=2, rows=5)
    names = {code: dtype for dtype, code in TYPES.items()}
    types = [names[t.type] for t in inputs]
    assert len(inputs) == len(INPUTS) and plugin.num_outputs() == len(OUTPUTS)
    assert plugin.output_types(types) == [names[t.type] for t in outputs]
    assert plugin.output_shapes(inputs) == [list(t.dims[: t.rank]) for t in outputs]
    plugin.configure(inputs, outputs)
    plugin.shape_change(inputs, outputs)
    both = [*inputs, *outputs]
    for position, form in enumerate(both):
        assert plugin.supports(position, inputs, outputs)
        for change in ({"format": 1}, {"type": TYPES["int8"]}):
            other = Tensor.from_buffer_copy(form)
            for key, value in change.items():
                setattr(other, key, value)
            changed = [*both[:position], other, *both[position + 1 :]]
            split = len(inputs)
            assert not plugin.supports(position, changed[:split], changed[split:])
    for position, input_name in enumerate(INPUTS):
        wrong = [*types[:position], "int32", *types[position + 1 :]]
        with pytest.raises(Refused, match=f"GatedDeltaRule: {input_name} is int32, must be"):
            plugin.output_types(wrong)


def test_states_are_aliased_only_where_the_node_says_so(plugins: Probe) -> None:
    outputs = range(len(OUTPUTS))
    assert [delta(plugins, OP, phase=BUILD).alias(i) for i in outputs] == [-1] * len(outputs)
    told = delta(plugins, OP, alias_states=1, phase=BUILD)
    assert [told.alias(i) for i in outputs] == [-1, *(INPUTS.index(name) for name in STATES)]


@pytest.mark.parametrize(
    ("name", "axis", "size", "told"),
    [
        ("x", 2, 641, r"x has shape \[2, 5, 641\], must be \[\*, \*, 640\]"),
        ("beta", 1, 4, "x's rows has 5, beta has 4"),
        ("beta", 2, 5, r"beta has shape \[2, 5, 5\], must be \[\*, \*, 6\]"),
        ("log_decay", 1, 6, "x's rows has 5, log_decay has 6"),
        ("log_decay", 0, 1, "the batch of x has 2, log_decay has 1"),
        ("conv_weight", 1, 3, r"conv_weight has shape \[640, 3\], must be \[640, 4\]"),
        ("recurrent", 0, 3, "the batch of x has 2, recurrent has 3"),
        ("recurrent", 2, 128, "recurrent has shape"),
        ("conv_rows", 1, 18, r"conv_rows has shape \[2, 18, 640\], must be \[\*, 19, 640\]"),
        ("gate_rows", 1, 8, r"gate_rows has shape \[2, 8, 12\], must be \[\*, 16, 12\]"),
        ("past_len", 0, 3, "the batch of x has 2, past_len has 3"),
        ("replay_rows", 0, 1, "the batch of x has 2, replay_rows has 1"),
    ],
)
def test_shape_that_differs_is_refused_by_name(
    plugins: Probe, name: str, axis: int, size: int, told: str
) -> None:
    inputs, outputs = boundary(OP, batch=2, rows=5)
    wrong = resized(inputs, INPUTS.index(name), axis, size)
    plugin = delta(plugins, OP)
    for method in (plugin.configure, plugin.shape_change):
        with pytest.raises(Refused, match=told):
            method(wrong, outputs)


def test_tensors_of_another_number_are_refused(plugins: Probe) -> None:
    inputs, outputs = boundary(OP, batch=1, rows=1)
    with pytest.raises(Refused, match="GatedDeltaRule has 9 inputs, its attributes ask for 10"):
        delta(plugins, OP).configure(inputs[1:], outputs)
    with pytest.raises(Refused, match="has 3 outputs, its attributes ask for 4"):
        delta(plugins, OP).configure(inputs, outputs[1:])


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (3, 5), (1, 8), (2, 9), (4, 65), (2, 256)])
def test_launches_and_workspace_are_those_of_the_host_layer(
    plugins: Probe, name: str, batch: int, rows: int
) -> None:
    op = OPS[name]
    plugins.reset_driver(run_kernels=False)
    shape = DeltaShape(op=op, batch=batch, rows=rows)
    inputs, outputs = boundary(op, batch=batch, rows=rows)
    plugin = delta(plugins, op)
    assert plugin.workspace(inputs, outputs) == shape.workspace_bytes
    arrays = [np.zeros(tuple(t.dims[: t.rank]), _dtype(t)) for t in inputs]
    y = np.zeros(tuple(outputs[0].dims[:3]), np.float32)
    plugin.enqueue(arrays, [y, *arrays[4:7]], np.zeros(8, np.int64))
    launched = [line.split()[1:] for line in plugins.driver_log() if line.startswith("launch")]
    assert launched == [
        [x.kernel, *(str(n) for n in (*x.grid, x.threads, x.shared_bytes))]
        for x in shape.launches()
    ]


def _dtype(form: Tensor) -> str:
    return next(dtype for dtype, code in TYPES.items() if code == form.type)


class PluginRule:
    """The op as ``Slots`` runs it, by a plugin that went through a plan."""

    def __init__(self, plugins: Probe, op: GatedDeltaRule) -> None:
        self._plugin = delta(plugins, op, phase=BUILD).round_trip().attach()

    def __call__(
        self, op: GatedDeltaRule, rows: Rows, states: Rows, weight: Any, *lengths: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        batch, count = rows["x"].shape[:2]
        y = poisoned((batch, count, op.value_size), np.float32)
        size = DeltaShape(op=op, batch=batch, rows=count).workspace_bytes
        workspace = poisoned((size + 256,), np.uint8)
        inputs = [*rows.values(), weight, *states.values(), *lengths]
        self._plugin.enqueue(
            inputs, [y, *states.values()], workspace[-workspace.ctypes.data % 256 :]
        )
        return y


@pytest.mark.parametrize("name", OPS)
def test_enqueue_computes_what_the_kernels_do_over_steps_that_are_taken_back(
    plugins: Probe, name: str
) -> None:
    """Pointers, workspace and parameters reach the kernels: bit for bit the host layer's own steps."""
    op, rng, batch = OPS[name], np.random.default_rng(3), 3
    weight = rng.standard_normal((op.channels, op.taps)).astype(np.float32)
    runs = (PluginRule(plugins, op), DeltaKernels())
    ours, theirs = (Slots(op, run, batch=batch, fp32_as=np.float32) for run in runs)
    past = np.zeros(batch, np.int64)
    for rows in (17, 3, 1, 9):
        counts = np.array([rows, 0, max(rows - 1, 1)])
        given = random_rows(op, rng, batch, rows)
        found, wanted = (slots.step(given, weight, past, counts) for slots in (ours, theirs))
        np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))
        for state in STATES:
            np.testing.assert_array_equal(ours.states[state], theirs.states[state])
        past = np.maximum(past + counts - 1, ours.state_len) * (counts > 0)
    assert past[0] > 20 and np.abs(ours.states["recurrent"]).max() > 0


def test_states_at_two_addresses_are_refused_at_run_time(plugins: Probe) -> None:
    inputs, outputs = boundary(OP, batch=1, rows=2)
    arrays = [np.zeros(tuple(t.dims[: t.rank]), _dtype(t)) for t in inputs]
    y = np.zeros(tuple(outputs[0].dims[:3]), np.float32)
    for index, name in enumerate(STATES):
        states = list(arrays[4:7])
        states[index] = states[index].copy()
        with pytest.raises(Refused, match=f"{name} has two addresses, bind one buffer"):
            delta(plugins, OP).enqueue(arrays, [y, *states], np.zeros(1 << 20, np.uint8))
    assert not [line for line in plugins.driver_log() if line.startswith("launch")]


def test_the_builder_times_nothing_that_could_write_astray(plugins: Probe) -> None:
    """Lengths are garbage while tactics are timed: only y is cleared."""
    inputs, outputs = boundary(OP, batch=1, rows=2)
    arrays = [np.full(tuple(t.dims[: t.rank]), 7, _dtype(t)) for t in inputs]
    arrays[INPUTS.index("replay_rows")][:] = 2**60
    y = np.ones(tuple(outputs[0].dims[:3]), np.float32)
    copies = [array.copy() for array in arrays[4:7]]
    delta(plugins, OP, phase=BUILD).attach().enqueue(arrays, [y, *copies])
    assert plugins.driver_log() == [f"clear {y.nbytes}"]
    assert not y.any() and all((array == 7).all() for array in copies)


def test_kernels_are_loaded_before_a_stream_can_be_captured(plugins: Probe) -> None:
    plugins.reset_driver(arch=88)  # no device that anything was loaded on
    with pytest.raises(Refused, match="no code of delta for sm_88"):
        delta(plugins, OP).attach()
    plugins.reset_driver()
    rule, rng = PluginRule(plugins, OP), np.random.default_rng(1)
    plugins.reset_driver()
    slots = Slots(OP, rule, batch=1, fp32_as=np.float32)
    weight = np.ones((OP.channels, OP.taps), np.float32)
    slots.step(random_rows(OP, rng, 1, 2), weight, np.zeros(1, np.int64), np.array([2]))
    assert [line.split()[0] for line in plugins.driver_log()] == ["launch"] * 3
