"""A profile tells a state that stays in place from one that is copied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from benchmarks.ort_profile import cache_sized_copies, read_nodes, time_by_op

SLOTS = 1 << 18
STATE_BYTES = SLOTS * 16 * 4


def node_event(name: str, op: str, *, us: float, output_bytes: int) -> dict[str, Any]:
    args = {"op_name": op, "output_size": str(output_bytes)}
    return {"cat": "Node", "name": f"{name}_kernel_time", "dur": us, "args": args}


@pytest.fixture
def written_profile(tmp_path: Path) -> Path:
    big = 64 << 20
    events = [
        {"cat": "Session", "name": "model_run", "dur": 9},
        node_event("in_place", "ScatterND", us=9000, output_bytes=big),
        node_event("in_place", "ScatterND", us=6, output_bytes=big),
        node_event("copying", "ScatterND", us=9000, output_bytes=big),
        node_event("slice", "Slice", us=5, output_bytes=big),
        node_event("small", "Slice", us=700, output_bytes=1024),
    ]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(events))
    return path


def test_a_copy_is_told_by_size_and_an_in_place_update_by_its_quickest_run(
    written_profile: Path,
) -> None:
    copies = cache_sized_copies(written_profile, 1 << 20)
    assert {node.name for node in copies} == {"copying", "slice"}


def test_nodes_are_added_up_over_runs_and_by_operator(written_profile: Path) -> None:
    nodes = read_nodes(written_profile)
    first = nodes[0]
    assert (first.name, first.runs, first.total_us, first.min_us) == ("in_place", 2, 9006, 6)
    assert time_by_op(nodes) == [("ScatterND", 2, 18006.0), ("Slice", 2, 705.0)]


def scatter_session(profile: Path) -> ort.InferenceSession:
    """``out = ScatterND(state, index, update)`` with profiling on."""
    nodes = [helper.make_node("ScatterND", ["state", "index", "update"], ["out"])]
    inputs = [
        helper.make_tensor_value_info("state", TensorProto.FLOAT, [SLOTS, 16]),
        helper.make_tensor_value_info("index", TensorProto.INT64, [1, 1]),
        helper.make_tensor_value_info("update", TensorProto.FLOAT, [1, 16]),
    ]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, [SLOTS, 16])]
    graph = helper.make_graph(nodes, "scatter", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    options.profile_file_prefix = str(profile)
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


@pytest.mark.parametrize("same_buffer", [True, False])
def test_a_real_profile_shows_a_copy_unless_one_buffer_is_bound_to_both(
    tmp_path: Path, same_buffer: bool
) -> None:
    session = scatter_session(tmp_path / "scatter")
    state = ort.OrtValue.ortvalue_from_numpy(np.zeros((SLOTS, 16), np.float32))
    other = ort.OrtValue.ortvalue_from_numpy(np.zeros((SLOTS, 16), np.float32))
    binding = session.io_binding()
    binding.bind_ortvalue_input("state", state)
    binding.bind_cpu_input("index", np.array([[3]], np.int64))
    binding.bind_cpu_input("update", np.ones((1, 16), np.float32))
    binding.bind_ortvalue_output("out", state if same_buffer else other)
    for _ in range(8):
        session.run_with_iobinding(binding)
    copies = cache_sized_copies(Path(session.end_profiling()), STATE_BYTES)
    assert [node.op for node in copies] == ([] if same_buffer else ["ScatterND"])
