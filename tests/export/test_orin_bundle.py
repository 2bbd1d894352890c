"""An exported Orin bundle: its nodes, layouts and manifest, and its check variant on ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from support.checkpoints import write_checkpoint
from support.refusals import refused

from selfdraft.export.attention_options import AttentionOptions
from selfdraft.export.bundle import export_bundle
from selfdraft.export.check_variant import check_variant, write_check_variant
from selfdraft.export.operators import check_operators, operators_since
from selfdraft.export.options import ExportOptions
from selfdraft.export.plugin_nodes import OPS
from selfdraft.manifest import GraphSpec, Manifest, load_manifest
from selfdraft.runtime.backend import Step
from selfdraft.runtime.graph_check import check_graph
from selfdraft.runtime.reference import ReferenceBackend
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.cached_attention.launches import check_kernels

CHECKPOINT = Path(__file__).parents[2] / "demo" / "checkpoint"
CAPACITY, BATCH, ROWS = 512, 2, 5
SPARSE = AttentionOptions(kind="sparse", budget_tokens=256, local_blocks=2)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """int4, sparse, fp16 caches."""
    folder = tmp_path_factory.mktemp("orin") / "bundle"
    options = ExportOptions(target="orin-jp6", weights="int4", attention=SPARSE)
    return export_bundle(CHECKPOINT, folder, options).output


@pytest.fixture(scope="module")
def manifest(bundle: Path) -> Manifest:
    return load_manifest(bundle)


def graph_of(bundle: Path, name: str) -> onnx.ModelProto:
    return onnx.load(str(bundle / f"{name}.onnx"), load_external_data=False)


@pytest.mark.parametrize("name", ["backbone", "mtp"])
def test_custom_operators_are_addressed_to_plugins_and_have_no_body(
    bundle: Path, manifest: Manifest, name: str
) -> None:
    model = graph_of(bundle, name)
    assert not model.functions
    assert {o.domain: o.version for o in model.opset_import} == {"": 18, "selfdraft": 1}
    custom = [node for node in model.graph.node if node.domain == "selfdraft"]
    found = []
    for node in custom:
        values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        assert (values["plugin_version"], values["plugin_namespace"]) == (b"1", b"selfdraft")
        found.append((node.name, node.op_type, "1", "selfdraft"))
    listed = manifest.graphs[name].plugin_nodes
    assert found == [(n.name, n.op, n.version, n.namespace) for n in listed]
    assert len({node.name for node in model.graph.node}) == len(model.graph.node)


def test_every_matrix_of_an_int4_export_is_multiplied_by_the_plugin(
    bundle: Path, manifest: Manifest
) -> None:
    for name, matrices in (("backbone", 3 * 4 + 1), ("mtp", 4 + 2)):
        types = [node.op_type for node in graph_of(bundle, name).graph.node]
        assert types.count("Int4MatMul") == matrices
        assert "MatMul" not in types and "DequantizeLinear" not in types


def test_states_have_the_layouts_that_the_kernels_read(manifest: Manifest) -> None:
    model = manifest.model
    heads, width = model.num_kv_heads, model.head_dim
    cache = ("batch", "blocks", heads, 64, width)
    states = {s.input: (s.shape, s.dtype, s.kind) for s in manifest.graphs["backbone"].states}
    assert states["k_cache_0"] == states["v_cache_2"] == (cache, "float16", "kv")
    assert states["summary_1"] == (("batch", heads, "blocks", 2, width), "float16", "summary")
    assert len(states) == 3 * model.num_layers
    precision = manifest.precision
    assert (precision.activations, precision.kv, precision.weights) == ("fp16", "fp16", "int4")
    assert manifest.target == "orin-jp6" and precision.int4_block == 64


def test_mtp_has_a_draft_head_of_its_own_and_no_lm_head(bundle: Path, manifest: Manifest) -> None:
    """Two engines cannot share a constant: with the LM head in both it would be held twice."""
    names = [value.name for value in graph_of(bundle, "mtp").graph.initializer]
    assert "mtp.draft_head.weight.strips" in names
    assert not [name for name in names if name.startswith("lm_head")]
    assert manifest.model.mtp is not None
    assert manifest.model.mtp.draft_vocab_size == manifest.model.vocab_size


def test_an_operator_that_a_tensorrt_lacks_is_refused_by_name(bundle: Path) -> None:
    import onnx_ir as ir

    def with_operator(op_type: str, domain: str = "") -> ir.Model:
        proto = graph_of(bundle, "backbone")
        proto.graph.node[3].op_type = op_type
        proto.graph.node[3].domain = domain
        return ir.serde.deserialize_model(proto)

    def check(model: ir.Model, version: tuple[int, int] = (10, 3)) -> None:
        check_operators(model, tensorrt=version, file="backbone.onnx")

    check(with_operator("Erf"))
    check(with_operator("RotaryEmbedding"), (10, 16))
    with refused("RotaryEmbedding", "from 10.15 on, not 10.3"):
        check(with_operator("RotaryEmbedding"))
    with refused("BitShift", "TensorRT 10.3 does not know"):
        check(with_operator("BitShift"))
    with refused("RMSNormalization", "knows since 10.15"):
        check(with_operator("RMSNormalization", "selfdraft"))
    with refused("Foo", "no plugin of ours"):
        check(with_operator("Foo", "selfdraft"))
    with refused("local function Int4MatMul_0"):
        check(ir.serde.deserialize_model(check_variant_of(bundle)))


def test_geometry_that_no_kernel_serves_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    small = write_checkpoint(tmp_path / "small", "mimo", head_dim=16)
    with refused("head_dim 16", "(64, 128, 256)"):
        export_bundle(small, tmp_path / "bundle", ExportOptions(target="orin-jp6"))
    assert not (tmp_path / "bundle").exists()
    op = CachedAttention(num_heads=32, num_kv_heads=32, head_dim=64, scale=0.125, kv_dtype="fp16")
    check_kernels(op, blocks=30_000)
    with refused("40000 cache blocks", "attend_fp16_d64"):
        check_kernels(op, blocks=40_000)


def check_variant_of(bundle: Path) -> onnx.ModelProto:
    """The check variant with plugin nodes put back: functions that nothing calls."""
    model = graph_of(bundle, "backbone")
    model.functions.extend(check_variant(model).functions)
    return model


def test_no_custom_operator_has_a_standard_name() -> None:
    assert not {name for _, name in OPS} & set(operators_since())


def test_check_variant_has_bodies_and_the_same_boundary(bundle: Path, manifest: Manifest) -> None:
    model = graph_of(bundle, "backbone")
    checked = check_variant(model)
    assert list(checked.graph.input) == list(model.graph.input)
    assert list(checked.graph.output) == list(model.graph.output)
    called = {node.op_type for node in checked.graph.node if node.domain == "selfdraft"}
    assert called == {function.name for function in checked.functions}
    assert [o.version for o in checked.opset_import if not o.domain] == [21]
    inner = {node.op_type for function in checked.functions for node in function.node}
    assert "If" not in inner  # crashes NVIDIA's builder


def test_check_variant_computes_what_the_reference_does(
    bundle: Path, manifest: Manifest, tmp_path: Path
) -> None:
    """A prefill and a step of both slots, logits and drafts, in fp16 against fp64."""
    write_check_variant(bundle, manifest, tmp_path)
    rng = np.random.default_rng(5)
    prompt = rng.integers(3, manifest.model.vocab_size, (BATCH, 330))
    ids = rng.integers(3, manifest.model.vocab_size, (BATCH, ROWS))
    reference: Any = ReferenceBackend.from_bundle(bundle)
    states = reference.allocate(batch=BATCH, capacity=CAPACITY)
    passes = {}
    graphs = {
        name: Graph(tmp_path, spec, batch=BATCH, table=bundle)
        for name, spec in manifest.graphs.items()
    }
    hidden: dict[str, Any] = {}
    for past, tokens, dense in ((0, prompt, 1), (330, ids, 0)):
        rows = tokens.shape[1]
        step = Step(
            past_len=np.full(BATCH, past),
            row_count=np.array([rows, rows - 2]),
            attend_all=np.full(BATCH, dense),
            row_index=np.array([[rows - 1, 0], [rows - 3, 1]]),
        )
        expected = reference.run_backbone(states, step, tokens)
        found = graphs["backbone"].run(step, tokens)
        hidden["reference"], hidden["check"] = expected.hidden, found["hidden"]
        passes["logits"] = (found["logits"], expected.logits)
        if not dense:
            assert found["blocks_read"].tolist() == expected.blocks_read.tolist()
        drafted = reference.run_mtp(states, step, tokens, hidden["reference"])
        own = graphs["mtp"].run(step, tokens, hidden["check"])
        passes["drafts"] = (own["top_values"], drafted.top_values)
        for name, (got, wanted) in passes.items():
            # Rounding of 2^-11 in every activation, through three layers.
            error = np.abs(got - wanted).max() / np.abs(wanted).max()
            assert error < 0.02, f"{name} at {past}: off by {error:.3g}"
        assert own["draft_ids"].tolist() == drafted.draft_ids.tolist()


class Graph:
    """A check variant with its states bound in place."""

    def __init__(self, folder: Path, spec: GraphSpec, *, batch: int, table: Path) -> None:
        import onnxruntime as ort
        from safetensors.numpy import load_file

        options = ort.SessionOptions()
        options.log_severity_level = 3
        self.session = ort.InferenceSession(str(folder / spec.file), options)
        check_graph(self.session, spec)
        self.spec = spec
        self.embedding = load_file(str(table / "embedding.safetensors"))["embedding"]
        self.states = {
            state.input: ort.OrtValue.ortvalue_from_numpy(
                np.zeros(state.sizes(batch=batch, capacity=CAPACITY), state.dtype)
            )
            for state in spec.states
        }

    def run(
        self, step: Step, ids: NDArray[np.int64], hidden: NDArray[Any] | None = None
    ) -> dict[str, NDArray[Any]]:
        feed: dict[str, Any] = {"input_ids": ids, "embedding": self.embedding}
        for name in ("past_len", "row_count", "attend_all", "row_index"):
            feed[name] = getattr(step, name)
        if hidden is not None:
            feed["hidden"] = hidden
        io = self.session.io_binding()
        for name, array in feed.items():
            io.bind_cpu_input(name, np.ascontiguousarray(array))
        for state in self.spec.states:
            value = self.states[state.input]
            io.bind_ortvalue_input(state.input, value)
            io.bind_ortvalue_output(state.output, value)
        names = [tensor.name for tensor in self.spec.outputs]
        for name in names:
            io.bind_output(name)
        self.session.run_with_iobinding(io)
        found = io.get_outputs()[len(self.spec.states) :]
        return {name: value.numpy() for name, value in zip(names, found, strict=True)}
