"""Hybrid models for a board: nodes, states and manifest, and the check variant on ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.hybrid import FOR_BOARDS, write_hybrid
from support.refusals import refused

from selfdraft.cli.check_backend import CheckBackend
from selfdraft.export.bundle import export_bundle
from selfdraft.export.check_variant import check_variant
from selfdraft.export.options import ExportOptions
from selfdraft.manifest import Manifest, load_manifest
from selfdraft.recurrent import STATE_LEN, state_length
from selfdraft.runtime.backend import Step
from selfdraft.runtime.reference import ReferenceBackend

HALF_ERROR = 0.02
"""Of the largest value: rounding of 2^-11 in every activation, through four layers."""
EXPORTS: dict[str, dict[str, Any]] = {"fp16": {}, "int4": {"weights": "int4", "int4_block": 32}}


@pytest.fixture(scope="module", params=["int4", pytest.param("fp16", marks=pytest.mark.slow)])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("orin")
    write_hybrid(folder / "c", changes=FOR_BOARDS)
    options = ExportOptions(target="orin-jp6", **EXPORTS[request.param])
    return export_bundle(folder / "c", folder / "b", options).output


@pytest.fixture
def manifest(bundle: Path) -> Manifest:
    return load_manifest(bundle)


def graph_of(bundle: Path, name: str) -> onnx.ModelProto:
    return onnx.load(str(bundle / f"{name}.onnx"), load_external_data=False)


def test_every_layer_has_a_plugin_node_that_bears_its_number(
    bundle: Path, manifest: Manifest
) -> None:
    model = graph_of(bundle, "backbone")
    assert not model.functions
    layers = [n for n in manifest.graphs["backbone"].plugin_nodes if n.op != "Int4MatMul"]
    assert [(node.name, node.op) for node in layers] == [
        ("backbone.layers.0.delta", "GatedDeltaRule"),
        ("backbone.layers.1.delta", "GatedDeltaRule"),
        ("backbone.layers.2.delta", "GatedDeltaRule"),
        ("backbone.layers.3.attention", "CachedAttention"),
    ]
    node = next(node for node in model.graph.node if node.op_type == "GatedDeltaRule")
    assert {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute} == {
        "num_key_heads": 1,
        "num_value_heads": 3,
        "key_dim": 64,
        "value_dim": 64,
        "taps": 4,
        "row_dtype": b"fp16",
        "alias_states": 0,
        "plugin_version": b"1",
        "plugin_namespace": b"selfdraft",
    }


def test_matrices_of_a_delta_net_are_stored_as_those_of_other_layers(
    bundle: Path, manifest: Manifest
) -> None:
    types = Counter(node.op_type for node in graph_of(bundle, "backbone").graph.node)
    # in_proj, o, gate_up and down; of attention qkv, o, gate_up and down; the LM head.
    matrices, gates = 3 * 4 + 4 + 1, 3
    expected = (matrices, gates) if manifest.precision.weights == "int4" else (0, matrices + gates)
    assert (types["Int4MatMul"], types["MatMul"]) == expected, (
        "gates stay as they are, as on the CPU"
    )


def test_states_have_the_types_and_layouts_of_the_kernels(manifest: Manifest) -> None:
    states = {s.input: s for s in manifest.graphs["backbone"].states}
    assert states["recurrent_1"].shape == ("batch", 3, 64, 64)
    assert states["conv_rows_1"].shape == ("batch", 3 + 16, 2 * 64 + 3 * 64)
    assert states["gate_rows_1"].shape == ("batch", 16, 6)
    types = {key.rpartition("_")[0]: s.dtype for key, s in states.items() if key != "state_len"}
    assert types == {
        "recurrent": "float32",
        "conv_rows": "float16",
        "gate_rows": "float32",
        "k_cache": "float16",
        "v_cache": "float16",
    }
    apart = [s.name for graph in manifest.graphs.values() for s in graph.states if not s.aliased]
    assert apart == [STATE_LEN], "standard operators compute it"


def test_rows_reach_the_plugin_as_their_projection_gives_them(bundle: Path) -> None:
    """Not widened on the way; gates are fp32, and so is what comes back until norm and gate are done."""
    model = graph_of(bundle, "backbone")
    producers = {name: node for node in model.graph.node for name in node.output}
    for node in (n for n in model.graph.node if n.op_type == "GatedDeltaRule"):
        rows = producers[node.input[0]]
        assert rows.op_type == "Split"
        assert producers[rows.input[0]].op_type in ("MatMul", "Int4MatMul")
        assert [producers[name].op_type for name in node.input[1:3]] == ["Sigmoid", "Mul"]
        (reader,) = [n for n in model.graph.node if node.output[0] in n.input]
        assert reader.op_type == "Reshape"


def test_mtp_head_drafts_from_a_vocabulary_of_its_own(bundle: Path, manifest: Manifest) -> None:
    assert manifest.model.mtp is not None
    assert manifest.model.mtp.draft_vocab_size == manifest.model.vocab_size
    names = [value.name for value in graph_of(bundle, "mtp").graph.initializer]
    assert "mtp.draft_head.weight.strips" in names
    assert not [name for name in names if name.startswith("lm_head")]
    assert "mtp.layer.attention" in [n.name for n in manifest.graphs["mtp"].plugin_nodes]


def test_check_variant_has_no_branch_and_the_same_boundary(bundle: Path) -> None:
    model = graph_of(bundle, "backbone")
    checked = check_variant(model)
    assert list(checked.graph.input) == list(model.graph.input)
    assert list(checked.graph.output) == list(model.graph.output)
    delta = [f for f in checked.functions if f.name.startswith("GatedDeltaRule")]
    assert len(delta) == 1, "one body for all layers alike"
    used = {node.op_type for function in checked.functions for node in function.node}
    assert not used & {"If", "NonZero"}


@pytest.mark.parametrize("batch", [1, 3])
def test_check_variant_computes_what_the_reference_does_when_steps_are_taken_back(
    bundle: Path, manifest: Manifest, batch: int
) -> None:
    reference: Any = ReferenceBackend.from_bundle(bundle)
    check: Any = CheckBackend(bundle, manifest)
    rng = np.random.default_rng(batch)
    ours, theirs = (b.allocate(batch=batch, capacity=256) for b in (reference, check))
    past = np.zeros(batch, dtype=np.int64)
    for rows in (20, 3, 1, 9, 2, 30, 5):
        counts = rng.integers(0 if batch > 1 else 1, rows + 1, batch)
        step = Step(
            past_len=past.copy(),
            row_count=counts,
            attend_all=np.ones(batch, dtype=np.int64),
            row_index=np.tile(np.arange(rows), (batch, 1)),
        )
        ids = rng.integers(0, 256, (batch, rows))
        expected = reference.run_backbone(ours, step, ids)
        found = check.run_backbone(theirs, step, ids)
        scale = np.abs(expected.logits).max()
        for slot, count in enumerate(counts):
            error = np.abs(found.logits - expected.logits)[slot, :count].max(initial=0) / scale
            assert error < HALF_ERROR, f"slot {slot} at {past[slot]}: off by {error:.3g}"
        drafted = reference.run_mtp(ours, step, ids, expected.hidden)
        own = check.run_mtp(theirs, step, ids, found.hidden)
        scale = np.abs(drafted.top_values).max()
        for slot, count in enumerate(counts):
            error = np.abs(own.top_values - drafted.top_values)[slot, :count].max(initial=0)
            assert error / scale < HALF_ERROR
        floors = [state_length(int(p), int(c)) for p, c in zip(past, counts, strict=True)]
        back = np.where(counts > 0, np.maximum(past, floors), past)
        past = np.array(
            [rng.integers(b, p + c + 1) for b, p, c in zip(back, past, counts, strict=True)]
        )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"linear_key_head_dim": 48}, "no key heads of 48 (they serve 64 or 128)"),
        ({"linear_value_head_dim": 32}, "no value heads of 32 (they serve 64 or 128)"),
        ({"linear_conv_kernel_dim": 9}, "no convolutions of 9 taps (they serve at most 8)"),
    ],
)
def test_delta_net_that_no_kernel_serves_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, int], told: str
) -> None:
    write_hybrid(tmp_path / "c", changes=FOR_BOARDS | changes)
    with refused("kernels of GatedDeltaRule", told):
        export_bundle(tmp_path / "c", tmp_path / "b", ExportOptions(target="orin-jp7"))
    assert not (tmp_path / "b").exists()
