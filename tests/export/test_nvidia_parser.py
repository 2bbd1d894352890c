"""Orin graphs in NVIDIA's own parser and builder, on a CPU (packages ``tensorrt-rtx``, ``make test-full``).

Each parse or build runs in a process of its own. Plugin nodes: this flavour finds the library, creates the
plugin with the node's attributes and then aborts, so every kind of node is parsed alone and judged by what the
parser said before.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from support.hybrid import FOR_BOARDS, write_hybrid
from support.plugin_models import distinct_nodes, one_node_model
from support.plugin_probe import probe

from benchmarks.make_checkpoint import Qwen3Geometry, write_checkpoint
from selfdraft.export.attention_options import AttentionOptions
from selfdraft.export.bundle import export_bundle
from selfdraft.export.check_variant import write_check_variant
from selfdraft.export.operators import operators_since
from selfdraft.export.options import ExportOptions
from selfdraft.export.plugin_nodes import ROLE
from selfdraft.manifest import load_manifest
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.cached_attention.onnx_masked_body import masked_function_text

SUPPORT = Path(__file__).parents[1] / "support"
DEMO = Path(__file__).parents[2] / "demo" / "checkpoint"
PACKAGES = ("tensorrt_rtx_bindings", "tensorrt_rtx_libs")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
SPARSE: dict[str, Any] = {"kind": "sparse", "budget_tokens": 1024, "local_blocks": 2}
CREATED = "Successfully created plugin: "

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING), reason=f"{', '.join(MISSING)} not installed: make test-full installs them"
    ),
]


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """125 M random weights in the Qwen3 layout, with an MTP head."""
    folder = tmp_path_factory.mktemp("random") / "checkpoint"
    return write_checkpoint(folder, Qwen3Geometry(), mtp=True)


EXPORTS: dict[str, tuple[str, ExportOptions]] = {
    "demo_fp16": ("demo", ExportOptions(target="orin-jp6")),
    "demo_int4_sparse": (
        "demo",
        ExportOptions(target="orin-jp6", weights="int4", attention=AttentionOptions(**SPARSE)),
    ),
    "demo_int4_infllm_int8_kv": (
        "demo",
        ExportOptions(
            target="orin-jp7",
            weights="int4",
            int4_block=32,
            attention=AttentionOptions(
                kind="sparse",
                selector="infllm_v2",
                budget_tokens=1024,
                local_blocks=3,
                kv="int8",
            ),
        ),
    ),
    "hybrid_fp16": ("hybrid", ExportOptions(target="orin-jp6")),
    "hybrid_int4_sparse": (
        "hybrid",
        ExportOptions(target="orin-jp7", weights="int4", attention=AttentionOptions(**SPARSE)),
    ),
    "large_fp16": ("large", ExportOptions(target="orin-jp6")),
    "large_int4_sparse": (
        "large",
        ExportOptions(target="orin-jp7", weights="int4", attention=AttentionOptions(**SPARSE)),
    ),
}


@pytest.fixture(scope="session")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3.5 with heads that the kernels serve."""
    folder = tmp_path_factory.mktemp("hybrid") / "checkpoint"
    write_hybrid(folder, changes=FOR_BOARDS)
    return folder


@pytest.fixture(scope="module", params=list(EXPORTS))
def bundle(
    request: pytest.FixtureRequest, tmp_path_factory: Any, large: Path, hybrid: Path
) -> Path:
    source, options = EXPORTS[request.param]
    folder = tmp_path_factory.mktemp(request.param) / "bundle"
    sources = {"demo": DEMO, "large": large, "hybrid": hybrid}
    return export_bundle(sources[source], folder, options).output


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SUPPORT / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)


def parse(model: onnx.ModelProto, folder: Path) -> str:
    """What NVIDIA's parser says of ``model`` while the plugin library is loaded."""
    path = folder / "model.onnx"
    onnx.save(model, str(path))
    done = run("rtx_parse.py", path, probe().path)
    return done.stdout + done.stderr


def test_both_graphs_parse_and_build(bundle: Path, tmp_path: Path) -> None:
    manifest = load_manifest(bundle)
    write_check_variant(bundle, manifest, tmp_path)
    for name, graph in manifest.graphs.items():
        done = run("rtx_build.py", tmp_path / graph.file, 65, 2, 33)
        told = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
        assert told.get("built"), f"{name}: {told} {done.stderr[-2000:]}"
        assert told["plan_bytes"] > 0 and told["layers"] > 100


def test_every_kind_of_plugin_node_is_found_and_created(bundle: Path, tmp_path: Path) -> None:
    for graph in load_manifest(bundle).graphs.values():
        model = onnx.load(str(bundle / graph.file), load_external_data=False)
        nodes = list(distinct_nodes(model))
        assert {node.op_type for node in nodes} == {node.op for node in graph.plugin_nodes}
        for node in nodes:
            told = parse(one_node_model(model, node), tmp_path)
            assert f"{CREATED}{node.op_type}" in told, f"{node.name}: {told[-2000:]}"


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> onnx.ModelProto:
    """One attention node of the demo's Orin graph."""
    folder = tmp_path_factory.mktemp("one") / "bundle"
    exported = export_bundle(DEMO, folder, ExportOptions(target="orin-jp6")).output
    model = onnx.load(str(exported / "mtp.onnx"), load_external_data=False)
    node = next(n for n in distinct_nodes(model) if n.op_type == "CachedAttention")
    return one_node_model(model, node)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("head_dim", 32, "CachedAttention.head_dim is 32, must be 64, 128 or 256"),
        ("scale", -2.5, "CachedAttention.scale is -2.5"),
        ("selector", "best", "CachedAttention.selector is best"),
    ],
)
def test_attributes_reach_the_plugin_as_they_stand_in_the_graph(
    attention: onnx.ModelProto, tmp_path: Path, name: str, value: Any, told: str
) -> None:
    """Refused by our own words, with the value: integers, floats and strings arrive."""
    changed = onnx.ModelProto()
    changed.CopyFrom(attention)
    node = changed.graph.node[0]
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])
    said = parse(changed, tmp_path)
    assert told in said and CREATED not in said


@pytest.mark.parametrize(
    ("left_out", "winner"),
    [((), "plugin"), (("plugin_namespace",), "function"), (tuple(ROLE.values()), "function")],
)
def test_a_local_function_of_the_same_name_wins_unless_the_node_addresses_the_plugin(
    attention: onnx.ModelProto, tmp_path: Path, left_out: tuple[str, ...], winner: str
) -> None:
    """Why nodes of Orin graphs carry both attributes and the graphs hold no function.

    This parser is newer than TensorRT 10.3's, of which only the order without the attributes is told.
    """
    both = onnx.ModelProto()
    both.CopyFrom(attention)
    op = CachedAttention(num_heads=4, num_kv_heads=2, head_dim=64, scale=0.125, kv_dtype="fp16")
    text = masked_function_text(op, name="CachedAttention", opset=18)
    both.functions.append(onnx.parser.parse_function(text))
    node = both.graph.node[0]
    kept = [a for a in node.attribute if a.name not in left_out]
    del node.attribute[:]
    node.attribute.extend(kept)
    said = parse(both, tmp_path)
    assert (f"{CREATED}CachedAttention" in said) == (winner == "plugin"), said[-2000:]
    assert ("Importing as a local function" in said) == (winner == "function"), said[-2000:]


def test_a_standard_operators_name_wins_over_the_plugin_in_any_domain(
    attention: onnx.ModelProto, tmp_path: Path
) -> None:
    """Why no custom operator may bear one (``export.operators`` refuses it)."""
    renamed = onnx.ModelProto()
    renamed.CopyFrom(attention)
    node = renamed.graph.node[0]
    node.op_type = "Softmax"
    del node.input[1:], node.output[1:], renamed.graph.input[1:], renamed.graph.output[1:]
    said = parse(renamed, tmp_path)
    assert "PARSED True" in said and CREATED not in said


def test_our_graphs_hold_no_function(bundle: Path) -> None:
    for graph in load_manifest(bundle).graphs.values():
        assert not onnx.load(str(bundle / graph.file), load_external_data=False).functions


def test_the_operator_table_is_what_the_parser_knows() -> None:
    done = run("rtx_operators.py", *sorted(operators_since()))
    assert json.loads(done.stdout) == [], "operators of the table that NVIDIA's parser lacks"
