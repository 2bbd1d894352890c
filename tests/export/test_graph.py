"""The ONNX graphs against the torch modules they were traced from, and their form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from support.numerics import FP32_GRAPH, assert_close
from support.tiny_graph import tiny_manifest, tiny_spec, write_graphs

from selfdraft.export.torch_rung import TorchGraphs
from selfdraft.manifest import GraphSpec, ModelSpec, MtpSpec, RopeSpec
from selfdraft.runtime.backend import Step
from selfdraft.runtime.ort import OrtBackend

CAPACITY = 128
PARTLY_ROTATED = RopeSpec(inv_freq=(1.0, 0.3, 0.1, 0.03, 0.0, 0.0, 0.0, 0.0))
SPECS = {
    "mimo": tiny_spec(),
    "qwen3_wiring": tiny_spec(
        qkv_bias=False, qk_norm=True, mtp=MtpSpec(concat="embedding_first", tap="post_norm")
    ),
    "tied_trimmed": tiny_spec(
        tied_head=True,
        num_kv_heads=1,
        mtp=MtpSpec(
            concat="hidden_first",
            tap="pre_norm",
            recycle="pre_norm",
            position="next",
            mask_first_embedding=True,
            draft_vocab_size=40,
        ),
    ),
    "sandwich_norms": tiny_spec(sandwich_norm=True, rope=PARTLY_ROTATED),
    "one_row_kernel": tiny_spec(qkv_bias=False, qk_norm=True),
    "no_head_group_of_3": tiny_spec(num_heads=3, num_kv_heads=1, head_dim=16, mtp=None),
}


@pytest.fixture(scope="module", params=list(SPECS))
def written(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Any:
    folder = tmp_path_factory.mktemp(request.param)
    spec = SPECS[request.param]
    graphs, _ = write_graphs(spec, folder, exact_rows=request.param != "one_row_kernel")
    return folder, spec, graphs


def _feed(
    graph: GraphSpec,
    spec: ModelSpec,
    folder: Path,
    lengths: list[int],
    counts: list[int],
    rows: int,
) -> dict[str, NDArray[Any]]:
    from safetensors.numpy import load_file

    rng = np.random.default_rng(len(lengths) * 100 + rows)
    batch = len(lengths)
    feed: dict[str, NDArray[Any]] = {
        "input_ids": rng.integers(0, spec.vocab_size, (batch, rows)),
        "embedding": load_file(str(folder / "embedding.safetensors"))["embedding"],
        "past_len": np.array(lengths),
        "row_count": np.array(counts),
        "attend_all": np.ones(batch, np.int64),
        "row_index": np.stack([np.array([max(c - 1, 0), 0]) for c in counts]),
    }
    if any(t.name == "hidden" for t in graph.inputs):
        shape = (batch, rows, spec.hidden_size)
        feed["hidden"] = rng.standard_normal(shape).astype(np.float32)
    for state in graph.states:
        shape = (batch, spec.num_kv_heads, CAPACITY, spec.head_dim)
        feed[state.input] = rng.standard_normal(shape).astype(np.float32)
    return feed


def _run_bound(
    folder: Path, graph: GraphSpec, feed: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Outputs by name; every state is one buffer bound to its input and its output."""
    import onnxruntime as ort

    session = ort.InferenceSession(str(folder / graph.file))
    io = session.io_binding()
    arrays = {k: v.copy() for k, v in feed.items()}  # an OrtValue does not keep its array alive
    values = {k: ort.OrtValue.ortvalue_from_numpy(v) for k, v in arrays.items()}
    for name, value in values.items():
        io.bind_ortvalue_input(name, value)
    names = [tensor.name for tensor in graph.outputs]
    for name in names:
        io.bind_output(name)
    for state in graph.states:
        io.bind_ortvalue_output(state.output, values[state.input])
    session.run_with_iobinding(io)
    found = dict(zip(names, (v.numpy() for v in io.get_outputs()), strict=False))
    return found | {s.output: arrays[s.input] for s in graph.states}


def _real(name: str, array: NDArray[Any], lengths: list[int], counts: list[int]) -> NDArray[Any]:
    """The part of an output that the contract defines."""
    if name.endswith(("_cache_0_out", "_cache_1_out")):
        ends = [past + count for past, count in zip(lengths, counts, strict=True)]
        return np.concatenate([array[b, :, :end] for b, end in enumerate(ends)], axis=1)
    if name == "hidden":
        return np.concatenate([array[b, :c] for b, c in enumerate(counts)])
    return np.concatenate([array[b] for b, c in enumerate(counts) if c > 0])


@pytest.mark.parametrize(
    ("lengths", "counts", "rows"),
    [
        ([0], [1], 1),
        ([126], [1], 4),
        ([3, 64, 0], [1, 1, 0], 1),
        ([7], [5], 5),
        ([5, 0, 17], [4, 2, 1], 4),
        ([0, 63, 64, 100], [0, 1, 3, 2], 3),
    ],
)
def test_onnx_graphs_compute_what_torch_computes(
    written: Any, lengths: list[int], counts: list[int], rows: int
) -> None:
    folder, spec, graphs = written
    torch_graphs = TorchGraphs(folder, tiny_manifest(spec, graphs))
    for name, graph in graphs.items():
        feed = _feed(graph, spec, folder, lengths, counts, rows)
        got = _run_bound(folder, graph, feed)
        wanted_all = torch_graphs.run(name, feed)
        for key in wanted_all:
            actual, wanted = (
                _real(key, tensors[key], lengths, counts) for tensors in (got, wanted_all)
            )
            if wanted.dtype == np.int64:
                assert np.array_equal(actual, wanted), key
            else:
                assert_close(actual, wanted, relative=FP32_GRAPH, name=f"{name}.{key}")


def test_padded_rows_are_finite_and_leave_the_cache_alone(written: Any) -> None:
    folder, spec, graphs = written
    for graph in graphs.values():
        feed = _feed(graph, spec, folder, [9, 0], [1, 0], 4)
        got = _run_bound(folder, graph, feed)
        assert all(np.isfinite(got[o.name]).all() for o in graph.outputs)
        for state in graph.states:
            before, after = feed[state.input], got[state.output]
            changed = np.any(before != after, axis=(1, 3))  # [B, S]
            assert np.flatnonzero(changed[0][:-1]).tolist() == [9]
            assert not changed[1][:-1].any()


def test_graphs_hold_no_custom_op_and_stay_at_opset_21(written: Any) -> None:
    folder, spec, graphs = written
    for graph in graphs.values():
        model = onnx.load(folder / graph.file, load_external_data=False)
        versions = {o.domain: o.version for o in model.opset_import}
        assert set(versions) <= {"", "com.microsoft"} and versions[""] <= 21
        contrib = {node.op_type for node in model.graph.node if node.domain}
        # A head with norms on both sides of its residuals has no addition that a norm follows.
        assert contrib <= {"SkipSimplifiedLayerNormalization"}
        assert contrib or spec.sandwich_norm
        assert not model.functions


def test_one_row_kernel_is_there_only_when_rows_may_round_differently(
    written: Any, request: pytest.FixtureRequest
) -> None:
    folder, _, graphs = written
    model = onnx.load(folder / graphs["backbone"].file, load_external_data=False)
    branches = [
        {node.op_type for attribute in node.attribute for node in attribute.g.node}
        for node in model.graph.node
        if node.op_type == "If"
    ]
    expected = 2 if request.node.callspec.params["written"] == "one_row_kernel" else 0
    assert sum("GroupQueryAttention" in inner for inner in branches) == expected
    assert sum("Softmax" in inner for inner in branches) == expected


def test_every_weight_lies_once_in_the_shared_file(written: Any) -> None:
    folder, spec, graphs = written
    places: dict[str, tuple[str, str]] = {}
    for graph in graphs.values():
        model = onnx.load(folder / graph.file, load_external_data=False)
        for tensor in model.graph.initializer:
            if tensor.data_location != onnx.TensorProto.EXTERNAL:
                assert np.prod(tensor.dims, initial=1) <= 64, f"{tensor.name} is stored inline"
                continue
            entry = {e.key: e.value for e in tensor.external_data}
            assert entry["location"] == "weights.safetensors"
            place = (entry["offset"], entry["length"])
            assert places.setdefault(tensor.name, place) == place
    assert len(set(places.values())) == len(places)
    if "mtp" in graphs and not spec.tied_head:
        assert "lm_head.weight" in places


def test_states_keep_their_addresses_and_are_updated_in_place(written: Any) -> None:
    folder, spec, graphs = written
    backend = OrtBackend(folder, tiny_manifest(spec, graphs), threads=1)
    states = backend.allocate(batch=1, capacity=CAPACITY)
    before = states.addresses()
    for position in range(5):
        step = Step(
            past_len=np.array([position]),
            row_count=np.array([1]),
            attend_all=np.array([1]),
            row_index=np.array([[0]]),
        )
        backend.run_backbone(states, step, np.array([[position + 1]]))
    assert states.addresses() == before
    cache = states.tensors["backbone.k_cache_0"].array
    assert np.any(cache[0, :, :5] != 0, axis=(0, 2)).all() and not cache[0, :, 5:].any()


def test_masks_and_cache_indices_are_computed_once_for_all_layers(written: Any) -> None:
    folder, spec, graphs = written
    model = onnx.load(folder / graphs["backbone"].file, load_external_data=False)
    kinds = [node.op_type for node in model.graph.node]
    inner = [n.op_type for n in model.graph.node for a in n.attribute for n in a.g.node]
    assert (kinds + inner).count("ScatterND") == 2 * spec.num_layers
    assert kinds.count("ReduceMax") <= 2 and kinds.count("LessOrEqual") == 1
    assert kinds.count("Expand") <= 4
