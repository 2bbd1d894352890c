"""The TensorRT plugin library: its methods called in a process without TensorRT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.int4_cases import random_problem
from support.kernel_cases import make_kernel_op
from support.kernel_checks import bits
from support.kernel_step import KernelStep, poisoned, random_step, run_kernels
from support.plugin_probe import BUILD, Plugin, Probe, Refused, Tensor, probe, resized, tensor

from selfdraft.trt_plugins.cached_attention.contract import OP_VERSION, CachedAttention
from selfdraft.trt_plugins.cached_attention.launches import (
    planned_step,
    state_shapes,
    workspace_bytes,
)
from selfdraft.trt_plugins.int4_matmul.contract import Int4MatMul
from selfdraft.trt_plugins.int4_matmul.launch import launch_for
from selfdraft.trt_plugins.int4_matmul.oracle import int4_matmul

MATMUL = Int4MatMul(in_features=192, out_features=130, group_size=64)
OPS = {
    "dense": make_kernel_op(selector="all"),
    "int8": make_kernel_op(selector="all", kv_dtype="int8"),
    "sparse": make_kernel_op(selector="mean_std", budget_tokens=256),
    "infllm": make_kernel_op(selector="infllm_v2", kv_dtype="int8", head_dim=128),
    "window": make_kernel_op(selector="window", sliding_window=100, group=5, num_kv_heads=1),
    "wide": make_kernel_op(selector="min_max", head_dim=256, budget_share=0.25),
}
STATE_TYPES = {"k_scale": "float16", "v_scale": "float16", "summary": "float16"}


@pytest.fixture(scope="module")
def plugins() -> Probe:
    return probe()


@pytest.fixture(autouse=True)
def fresh_driver(plugins: Probe) -> None:
    plugins.reset_driver()


def attention(plugins: Probe, op: CachedAttention, **changes: Any) -> Plugin:
    phase = changes.pop("phase", 1)
    attributes: dict[str, Any] = {**op.onnx_attributes(), **changes}
    return plugins.create("CachedAttention", attributes, phase=phase)


def boundary(
    op: CachedAttention, *, batch: int, rows: int, blocks: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs and outputs of a node."""
    sizes = {"q": op.num_heads, "k": op.num_kv_heads, "v": op.num_kv_heads}
    new = [tensor("float16", (batch, rows, heads * op.head_dim)) for heads in sizes.values()]
    cache = "int8" if op.kv_dtype == "int8" else "float16"
    states = [
        tensor(STATE_TYPES.get(name, cache), dims)
        for name, dims in state_shapes(op, batch=batch, blocks=blocks).items()
    ]
    lengths = [tensor("int64", (batch,))] * 3
    counter = [tensor("int64", (1,))] if op.selector != "all" else []
    return [*new, *states, *lengths], [new[0], *states, *counter]


def test_library_loads_without_tensorrt_and_lists_its_creators(plugins: Probe) -> None:
    maps = Path("/proc/self/maps").read_text()
    assert "libselfdraft_plugins" in maps and "nvinfer" not in maps
    found = {c["name"]: c for c in plugins.creators()}
    assert set(found) == {"CachedAttention", "GatedDeltaRule", "Int4MatMul"}
    for creator in found.values():
        assert (creator["version"], creator["namespace"]) == (str(OP_VERSION), "selfdraft")
    named = {name for name, _, _ in found["CachedAttention"]["fields"]}
    assert named == set(OPS["dense"].onnx_attributes()) | {"alias_states"}
    named = {name for name, _, _ in found["Int4MatMul"]["fields"]}
    assert named == set(MATMUL.onnx_attributes())


def rounded(attributes: dict[str, Any]) -> dict[str, Any]:
    return {k: round(v, 5) if isinstance(v, float) else v for k, v in attributes.items()}


@pytest.mark.parametrize("name", OPS)
def test_attributes_survive_a_plan_and_a_clone(plugins: Probe, name: str) -> None:
    op = OPS[name]
    plugin = attention(plugins, op, phase=BUILD)
    wanted = rounded({**op.onnx_attributes(), "alias_states": 0})
    for one in (plugin, plugin.round_trip(), plugin.round_trip().clone(), plugin.clone()):
        assert rounded(one.fields()) == wanted
        assert one.names() == "CachedAttention 1 selfdraft PLUGIN_V3ONE_BUILD 2"
    matmul = plugins.create("Int4MatMul", dict(MATMUL.onnx_attributes()))
    assert matmul.round_trip().fields() == MATMUL.onnx_attributes()


def test_fields_are_read_in_every_form_that_a_parser_gives(plugins: Probe) -> None:
    op = OPS["sparse"]
    plugin = attention(plugins, op, sinks=np.int64(3), selector=b"min_max", kv_dtype=b"int8")
    assert [plugin.fields()[n] for n in ("sinks", "selector", "kv_dtype")] == [3, "min_max", "int8"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_heads": 0}, "CachedAttention.num_heads is 0, must be at least 1"),
        ({"num_heads": 34}, "CachedAttention.num_heads is 34"),
        ({"num_heads": 5}, "CachedAttention.num_heads is 5, must be 1 to 16 times num_kv_heads 2"),
        ({"num_kv_heads": 0}, "CachedAttention.num_kv_heads is 0"),
        ({"head_dim": 32}, "CachedAttention.head_dim is 32, must be 64, 128 or 256"),
        ({"block": 32}, "CachedAttention.block is 32, must be 64"),
        ({"selector": "top"}, "CachedAttention.selector is top"),
        ({"kv_dtype": "fp32"}, "CachedAttention.kv_dtype is fp32, must be fp16 or int8"),
        ({"scale": 0.0}, "CachedAttention.scale is 0"),
        ({"spread": -1.0}, "CachedAttention.spread is -1"),
        ({"budget_share": 1.0}, "CachedAttention.budget_share is 1"),
        ({"local_blocks": 1}, "CachedAttention.local_blocks is 1, must be at least 2"),
        ({"sinks": -1}, "CachedAttention.sinks is -1"),
        ({"alias_states": 2}, "CachedAttention.alias_states is 2"),
        ({"sinks": 1.0}, "CachedAttention.sinks is not an integer"),
        ({"scale": 1}, "CachedAttention.scale is not a float"),
        ({"selector": 1}, "CachedAttention.selector is not a string"),
        ({"sinks": np.int64(2**40)}, "CachedAttention.sinks is not an integer"),
    ],
)
def test_attribute_that_no_kernel_implements_is_refused_by_name(
    plugins: Probe, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(Refused, match=told):
        attention(plugins, OPS["sparse"], **changes)


def test_missing_attribute_is_refused_by_name(plugins: Probe) -> None:
    for name in OPS["dense"].onnx_attributes():
        attributes = {k: v for k, v in OPS["dense"].onnx_attributes().items() if k != name}
        with pytest.raises(Refused, match=f"CachedAttention.{name} is missing"):
            plugins.create("CachedAttention", attributes)
    with pytest.raises(Refused, match="Int4MatMul.group_size is 48, must be 32, 64 or 128"):
        plugins.create("Int4MatMul", {**MATMUL.onnx_attributes(), "group_size": 48})
    with pytest.raises(Refused, match="Int4MatMul.in_features is 200, must be a multiple"):
        plugins.create("Int4MatMul", {**MATMUL.onnx_attributes(), "in_features": 200})


@pytest.mark.parametrize("name", OPS)
def test_types_shapes_and_formats_are_those_of_the_contract(plugins: Probe, name: str) -> None:
    op = OPS[name]
    plugin = attention(plugins, op, phase=BUILD)
    inputs, outputs = boundary(op, batch=2, rows=5, blocks=9)
    names = {0: "float32", 1: "float16", 2: "int8", 3: "int32", 8: "int64"}
    types = [names[t.type] for t in inputs]
    assert len(inputs) == len(op.inputs) and plugin.num_outputs() == len(op.outputs)
    assert plugin.output_types(types) == [names[t.type] for t in outputs]
    assert plugin.output_shapes(inputs) == [list(t.dims[: t.rank]) for t in outputs]
    plugin.configure(inputs, outputs)
    plugin.shape_change(inputs, outputs)
    for position, form in enumerate([*inputs, *outputs]):
        assert plugin.supports(position, inputs, outputs)
        for change in ({"format": 1}, {"type": 0}):
            other = Tensor.from_buffer_copy(form)
            for key, value in change.items():
                setattr(other, key, value)
            both = [*inputs, *outputs]
            both[position] = other
            split = len(inputs)
            assert not plugin.supports(position, both[:split], both[split:])
    for position, input_name in enumerate(op.inputs):
        wrong = [*types]
        wrong[position] = "float32"
        with pytest.raises(Refused, match=f"CachedAttention: {input_name} is fp32, must be"):
            plugin.output_types(wrong)


def test_states_are_aliased_only_where_the_node_says_so(plugins: Probe) -> None:
    op = OPS["infllm"]
    outputs = range(len(op.outputs))
    silent = attention(plugins, op, phase=BUILD)
    assert [silent.alias(i) for i in outputs] == [-1] * len(outputs)
    told = attention(plugins, op, alias_states=1, phase=BUILD)
    pairs = {o: f"{i}_out" for i, o in zip(op.states, op.outputs[1:], strict=False)}
    assert all(a == b for a, b in pairs.items())
    wanted = [
        op.inputs.index(o.removesuffix("_out")) if o.endswith("_out") else -1 for o in op.outputs
    ]
    assert [told.alias(i) for i in outputs] == wanted


@pytest.mark.parametrize(
    ("name", "axis", "size", "told"),
    [
        ("q", 2, 63, r"q has shape \[2, 5, 63\], must be \[\*, \*, 256\]"),
        ("k", 1, 4, "q's rows has 5, k has 4"),
        ("v", 0, 3, "the batch of q has 2, v has 3"),
        ("k_cache", 2, 1, r"k_cache has shape .*, must be \[\*, \*, 2, 64, 64\]"),
        ("v_cache", 1, 8, "k_cache's blocks has 9, v_cache has 8"),
        ("v_cache", 3, 32, "v_cache has shape"),
        ("summary", 2, 8, "k_cache's blocks has 9, summary has 8"),
        ("summary", 3, 5, "summary has shape"),
        ("past_len", 0, 3, "the batch of q has 2, past_len has 3"),
    ],
)
def test_shape_that_differs_is_refused_by_name(
    plugins: Probe, name: str, axis: int, size: int, told: str
) -> None:
    op = OPS["sparse"]
    inputs, outputs = boundary(op, batch=2, rows=5, blocks=9)
    wrong = resized(inputs, op.inputs.index(name), axis, size)
    plugin = attention(plugins, op)
    for method in (plugin.configure, plugin.shape_change):
        with pytest.raises(Refused, match=told):
            method(wrong, outputs)
        retyped = resized(
            inputs, op.inputs.index(name), axis, inputs[op.inputs.index(name)].dims[axis]
        )
        retyped[op.inputs.index(name)].type = 3
        with pytest.raises(Refused, match=f"{name} is int32, must be"):
            method(retyped, outputs)


def test_cache_that_the_kernels_cannot_address_is_refused(plugins: Probe) -> None:
    plugin = attention(plugins, OPS["dense"])
    plugin.configure(*boundary(OPS["dense"], batch=1, rows=1, blocks=65_535))
    with pytest.raises(Refused, match="k_cache has 65536 blocks, must be below 65536"):
        plugin.configure(*boundary(OPS["dense"], batch=1, rows=1, blocks=65_536))
    op = make_kernel_op(selector="all", num_kv_heads=32, group=1)
    with pytest.raises(Refused, match="too many for the shared memory of attend_fp16_d64"):
        attention(plugins, op).configure(*boundary(op, batch=1, rows=1, blocks=40_000))


def test_tensors_of_another_number_are_refused(plugins: Probe) -> None:
    plugin = attention(plugins, OPS["dense"])
    inputs, outputs = boundary(OPS["dense"], batch=1, rows=1, blocks=2)
    with pytest.raises(Refused, match="CachedAttention has 7 inputs, its attributes ask for 8"):
        plugin.configure(inputs[1:], outputs)
    with pytest.raises(Refused, match="has 2 outputs, its attributes ask for 3"):
        plugin.configure(inputs, outputs[1:])


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(
    ("batch", "rows", "blocks"), [(1, 1, 7), (3, 5, 40), (1, 65, 33), (2, 256, 9)]
)
def test_launches_and_workspace_are_those_of_the_host_layer(
    plugins: Probe, name: str, batch: int, rows: int, blocks: int
) -> None:
    op = OPS[name]
    plugins.reset_driver(run_kernels=False)
    plugin = attention(plugins, op)
    shape = planned_step(op, batch=batch, rows=rows, blocks=blocks)
    inputs, outputs = boundary(op, batch=batch, rows=rows, blocks=blocks)
    steps = [shape, planned_step(op, batch=batch, rows=min(rows, 65), blocks=blocks)]
    assert plugin.workspace(inputs, outputs) == max(workspace_bytes(step) for step in steps)
    arrays = [np.zeros(1, np.int64)] * len(inputs)
    shaped = [_view(array, item) for array, item in zip(arrays, inputs, strict=True)]
    results = [_view(np.zeros(1, np.int64), item) for item in outputs]
    for i in range(len(op.states)):
        results[1 + i] = shaped[3 + i]
    plugin.enqueue(shaped, results, np.zeros(8, np.int64))
    launched = [line.split()[1:] for line in plugins.driver_log() if line.startswith("launch")]
    wanted = [
        [x.kernel, *(str(n) for n in (*x.grid, x.threads, x.shared_bytes))]
        for x in shape.launches()
    ]
    assert launched == wanted


def _view(memory: np.ndarray, form: Tensor) -> np.ndarray:
    """An array of the tensor's shape and type whose elements all lie in ``memory``."""
    names = {1: np.float16, 2: np.int8, 8: np.int64}
    one = memory.view(names[form.type])[:1]
    return np.lib.stride_tricks.as_strided(one, tuple(form.dims[: form.rank]), (0,) * form.rank)


def inputs_of(step: KernelStep) -> list[np.ndarray]:
    batch, rows = step.q.shape[:2]
    flat = [getattr(step, name).reshape(batch, rows, -1) for name in "qkv"]
    return [*flat, *step.states.values(), step.past_len, step.row_count, step.attend_all]


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("rows", [1, 4, 66])
def test_enqueue_computes_what_the_kernels_do(plugins: Probe, name: str, rows: int) -> None:
    """Pointers, workspace and parameters reach the kernels: bit for bit the host layer's own step."""
    op = OPS[name]
    plan = planned_step(op, batch=2, rows=rows, blocks=9)
    step = random_step(op, [500, 300], rows=rows, seed=rows, splits=plan.splits)
    wanted = run_kernels(_as_planned(step, prefill=plan.prefill))
    given = KernelStep(**{**_fields(step), "states": {n: a.copy() for n, a in step.states.items()}})
    inputs = inputs_of(given)
    y = poisoned((*given.q.shape[:2], op.num_heads * op.head_dim), np.float16)
    counter = [] if op.selector == "all" else [np.full(1, -7, np.int64)]
    plugin = attention(plugins, op, phase=BUILD).round_trip().attach()
    outputs = [y, *given.states.values(), *counter]
    plan = planned_step(op, batch=2, rows=rows, blocks=given.blocks)
    workspace = poisoned((workspace_bytes(plan) + 256,), np.uint8)
    plugin.enqueue(inputs, outputs, workspace[-workspace.ctypes.data % 256 :])
    np.testing.assert_array_equal(bits(y.reshape(wanted.y.shape)), bits(wanted.y))
    for state, array in wanted.states.items():
        np.testing.assert_array_equal(bits(given.states[state]), bits(array), err_msg=state)
    assert [int(c[0]) for c in counter] == ([] if counter == [] else [wanted.blocks_read])


def _fields(step: KernelStep) -> dict[str, Any]:
    return {name: getattr(step, name) for name in KernelStep.__dataclass_fields__}


def _as_planned(step: KernelStep, *, prefill: bool) -> KernelStep:
    return KernelStep(**{**_fields(step), "prefill": prefill})


def test_states_at_two_addresses_are_refused_at_run_time(plugins: Probe) -> None:
    op = OPS["dense"]
    step = random_step(op, [100], rows=1, seed=1)
    inputs = inputs_of(step)
    y = np.zeros((1, 1, op.num_heads * op.head_dim), np.float16)
    copies = [array.copy() for array in step.states.values()]
    with pytest.raises(Refused, match="k_cache has two addresses, bind one buffer"):
        attention(plugins, op).enqueue(inputs, [y, *copies], np.zeros(1 << 20, np.uint8))
    assert not [line for line in plugins.driver_log() if line.startswith("launch")]


def test_the_builder_times_nothing_that_could_write_astray(plugins: Probe) -> None:
    """Lengths are garbage while tactics are timed: only y and the counter are cleared."""
    op = OPS["sparse"]
    step = random_step(op, [100], rows=2, seed=1)
    y = np.ones((1, 2, op.num_heads * op.head_dim), np.float16)
    counter = np.full(1, 9, np.int64)
    copies = [array.copy() for array in step.states.values()]
    inputs = inputs_of(step)
    inputs[op.inputs.index("past_len")] = np.full(1, 2**60, np.int64)
    attention(plugins, op, phase=BUILD).attach().enqueue(inputs, [y, *copies, counter])
    assert plugins.driver_log() == [f"clear {y.nbytes}", "clear 8"]
    assert not y.any() and not counter.any()


def test_kernels_are_loaded_before_a_stream_can_be_captured(plugins: Probe) -> None:
    op = OPS["sparse"]
    plugin = attention(plugins, op).attach()
    step = random_step(op, [100], rows=1, seed=1)
    y = np.zeros((1, 1, op.num_heads * op.head_dim), np.float16)
    plugins.reset_driver()
    outputs = [y, *step.states.values(), np.zeros(1, np.int64)]
    plugin.enqueue(inputs_of(step), outputs, np.zeros(1 << 22, np.uint8))
    assert not [line for line in plugins.driver_log() if line.startswith("load")]


@pytest.mark.parametrize(
    ("device", "told"),
    [
        ({"arch": 90}, "no code of append for sm_90"),
        (
            {"version": 11040},
            "the code of append for sm_87 needs a newer CUDA than the driver's 11040",
        ),
    ],
)
def test_device_that_the_embedded_code_is_not_for_is_refused(
    plugins: Probe, device: dict[str, int], told: str
) -> None:
    plugins.reset_driver(**device)
    plugin = attention(plugins, OPS["dense"])
    with pytest.raises(Refused, match=told):
        plugin.attach()


@pytest.mark.parametrize("rows", [1, 8, 9, 17, 33, 100])
def test_int4_matmul_computes_what_its_oracle_does(plugins: Probe, rows: int) -> None:
    problem = random_problem(MATMUL, rows=rows, seed=rows)
    x, weight, scale = problem.x, problem.weight, problem.scale
    y = poisoned((rows, MATMUL.out_features), np.float16)
    plugin = plugins.create("Int4MatMul", dict(MATMUL.onnx_attributes())).attach()
    plugins.reset_driver()
    plugin.enqueue([x, weight, scale], [y])
    launch = launch_for(MATMUL, rows=rows)
    grid = " ".join(map(str, launch.grid))
    told = f"launch {launch.kernel} {grid} {launch.threads} {launch.shared_bytes}"
    assert plugins.driver_log() == [told]
    wanted = int4_matmul(x, weight, scale, op=MATMUL)
    np.testing.assert_allclose(y, wanted, rtol=2.0**-10, atol=2e-3)


def test_int4_matmul_takes_rows_of_any_rank_and_refuses_other_weights(plugins: Probe) -> None:
    plugin = plugins.create("Int4MatMul", dict(MATMUL.onnx_attributes()))
    weights = [tensor("int8", MATMUL.weight_shape), tensor("float16", MATMUL.scale_shape)]
    for leading in ((), (7,), (2, 3)):
        x = tensor("float16", (*leading, 192))
        y = tensor("float16", (*leading, 130))
        plugin.configure([x, *weights], [y])
        assert plugin.output_shapes([x, *weights]) == [[*leading, 130]]
        assert plugin.workspace([x, *weights], [y]) == 0
    with pytest.raises(Refused, match=r"x has shape \[2, 190\], must be \[..., 192\]"):
        plugin.configure([tensor("float16", (2, 190)), *weights], [y])
    with pytest.raises(Refused, match="weight has shape"):
        plugin.configure([x, *resized(weights, 0, 0, 4)], [y])
    with pytest.raises(Refused, match="scale is fp32, must be fp16"):
        plugin.output_types(["float16", "int8", "float32"])
