"""The planner's bytes are the exporter's, to the byte: weights by part, and states."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import write_checkpoint
from support.hybrid import write_hybrid

from benchmarks.make_checkpoint import Qwen3Geometry, qwen3_config
from selfdraft.errors import ConfigError
from selfdraft.export.attention_options import AttentionOptions
from selfdraft.export.bundle import ExportPlan, plan_export
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.families import read_model
from selfdraft.export.options import ExportOptions
from selfdraft.export.weight_plan import bytes_by_part
from selfdraft.jetson.planner.geometry import Geometry, LinearAttention, geometry_from_spec
from selfdraft.jetson.planner.reading import attention_of, state_bytes
from selfdraft.jetson.planner.storage import (
    Storage,
    device_storage,
    fit_block,
    stored_as,
    weight_bytes,
)
from selfdraft.manifest import (
    AttentionPlan,
    ModelSpec,
    MtpSpec,
    Precision,
    RopeSpec,
    TargetName,
    capacity_for,
)
from selfdraft.trt_plugins.gated_delta_rule.contract import ROW_TYPES

HYBRIDS = Path(__file__).parents[2] / "docs" / "gated_delta.md"
DEMO = Path(__file__).parents[2] / "demo" / "checkpoint"


STORED: dict[str, dict[str, Any]] = {
    "fp32": {},
    "int4": {"weights": "int4"},
    "bf16": {"weights": "bf16"},
    "int4, int8 head and embedding": {"weights": "int4", "lm_head": "int8", "embedding": "int8"},
    "int4, fp16 embedding": {"weights": "int4", "embedding": "fp16"},
}

WHOLE_BLOCKS = {"hidden_size": 64, "linear_num_value_heads": 4}
"""Sizes that blocks of 16 inputs divide; value heads of 8 make 32 inputs."""


def storage_of(plan: ExportPlan, options: ExportOptions) -> Storage:
    """What the planner makes of the precision that the manifest will state."""
    return stored_as(
        Precision(
            weights=plan.weights.backbone_type,
            embedding=plan.table_type,
            lm_head=plan.weights.type_of("lm_head."),
            mtp=plan.weights.type_of("mtp.p", "mtp.layer."),
            int4_block=plan.weights.int4_block,
            activations="fp32",
            kv=options.kv or "fp32",
        )
    )


def planned(plan: ExportPlan, options: ExportOptions) -> dict[str, int]:
    """What the planner says; the draft vocabulary is known from the options alone."""
    geometry = geometry_from_spec(plan.model.spec, name="x")
    geometry = dataclasses.replace(geometry, draft_vocab_size=options.draft_vocab)
    return weight_bytes(geometry, storage_of(plan, options))


@pytest.mark.parametrize("draft_vocab", [None, 300])
@pytest.mark.parametrize("stored", STORED)
def test_weights_of_the_demo_are_those_of_the_exporter(stored, draft_vocab) -> None:
    options = ExportOptions(**STORED[stored], draft_vocab=draft_vocab)
    plan = plan_export(DEMO, options)
    assert planned(plan, options) == bytes_by_part([plan.embedding, plan.weights])


@pytest.mark.parametrize("family", ["mimo", "qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("mtp", ["qwen", None])
@pytest.mark.parametrize("stored", ["fp32", "int4", "int4, int8 head and embedding"])
def test_weights_of_every_family_are_those_of_the_exporter(
    tmp_path, family, tied, mtp, stored
) -> None:
    source = write_checkpoint(tmp_path / "c", family, tied=tied, mtp=mtp)
    options = ExportOptions(**STORED[stored])
    plan = plan_export(source, options)
    assert planned(plan, options) == bytes_by_part([plan.embedding, plan.weights])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("mtp", [True, False])
@pytest.mark.parametrize("stored", STORED)
def test_weights_of_a_hybrid_are_those_of_the_exporter(tmp_path, stored, mtp, tied) -> None:
    write_hybrid(tmp_path / "c", mtp=mtp, changes={**WHOLE_BLOCKS, "tie_word_embeddings": tied})
    options = ExportOptions(**STORED[stored])
    plan = plan_export(tmp_path / "c", options)
    assert planned(plan, options) == bytes_by_part([plan.embedding, plan.weights])


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("target", "row_dtype"), [("cpu", "fp32"), ("orin-jp6", "fp16")])
def test_states_of_a_hybrid_are_those_that_its_graphs_declare(
    tmp_path, target, row_dtype, batch
) -> None:
    write_hybrid(tmp_path / "c")
    spec = read_model(Checkpoint.open(tmp_path / "c")).spec
    geometry, kv = geometry_from_spec(spec, name="x"), "fp32" if target == "cpu" else "fp16"
    own = attention_of(spec, None, kv=kv)
    exported = declared_states(spec, kv=kv, row_dtype=row_dtype, target=target, batch=batch)
    linear = geometry.linear
    assert linear is not None and set(exported["backbone"]) == {"kv", "recurrent", "conv"}
    kept = linear.kept_bytes(row_bytes=np.dtype(ROW_TYPES[row_dtype]).itemsize)
    assert exported == {
        "backbone": {
            **state_bytes(own.layers, context=1000, batch=batch),
            **{kind: size * batch for kind, size in kept.items()},
        },
        "mtp": state_bytes(own.mtp, context=1000, batch=batch),
    }


@pytest.mark.parametrize(("layers", "value_heads"), [(18, 16), (24, 32)])
def test_the_page_tells_what_published_hybrids_keep(layers, value_heads) -> None:
    """Qwen3.5-0.8B and -4B: heads of 128 x 128, 16 of keys, 4 taps; the log is 16 rows and 3 inputs more."""
    linear = LinearAttention(num_layers=layers, key_heads=16, value_heads=value_heads, head_dim=128)
    channels, gates = 2 * 16 * 128 + value_heads * 128, layers * 16 * 2 * value_heads * 4
    state, rows = layers * value_heads * 128 * 128 * 4, layers * 19 * channels * 4
    assert linear.state_bytes == state
    assert linear.kept_bytes(row_bytes=4) == {"recurrent": state + gates + 8, "conv": rows}
    logs = [gates + rows, gates + rows / 2]  # fp16 rows on a board
    text = " | ".join(f"{size / 2**20:.1f} MiB" for size in (state, *logs))
    assert f", {layers} layers | {text} |" in HYBRIDS.read_text(encoding="utf-8")


def test_the_planner_finds_the_exporters_int4_block(tmp_path) -> None:
    source = write_checkpoint(tmp_path / "c", "qwen3", hidden=48, head_dim=16, intermediate=80)
    plan = plan_export(source, ExportOptions(weights="int4"))
    geometry = geometry_from_spec(plan.model.spec, name="x")
    assert fit_block(geometry, 32) == plan.weights.int4_block == 16


def test_a_model_that_no_int4_block_fits_is_refused() -> None:
    with pytest.raises(ConfigError, match="no multiple of 16"):
        fit_block(dataclasses.replace(geometry_125m(), hidden_size=70), 128)


def geometry_125m() -> Geometry:
    """``benchmarks/make_checkpoint.py`` as a geometry."""
    made = Qwen3Geometry()
    return Geometry(
        name="random-125m",
        hidden_size=made.hidden,
        num_layers=made.layers,
        num_heads=made.heads,
        num_kv_heads=made.kv_heads,
        head_dim=made.head_dim,
        intermediate_size=made.ffn,
        vocab_size=made.vocab,
        tied_head=qwen3_config(made, 0, mtp=True, dtype="bf16")["tie_word_embeddings"],
        qk_norm=True,
        mtp=True,
    )


@pytest.fixture(scope="session")
def source_125m(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The random checkpoint of benchmarks/, as a user would make it."""
    pytest.importorskip("torch", reason="makes the checkpoint")
    from benchmarks.make_checkpoint import write_checkpoint as write_random

    source = tmp_path_factory.mktemp("checkpoints") / "random-125m"
    write_random(source, Qwen3Geometry(), mtp=True)
    return source


@pytest.mark.slow
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("draft_vocab", [None, 8192])
def test_weights_of_the_125m_model_are_those_of_the_exporter(
    source_125m, stored, draft_vocab
) -> None:
    options = ExportOptions(**STORED[stored], draft_vocab=draft_vocab)
    plan = plan_export(source_125m, options)
    expected = bytes_by_part([plan.embedding, plan.weights])
    assert planned(plan, options) == expected
    own = dataclasses.replace(geometry_125m(), draft_vocab_size=draft_vocab)
    assert weight_bytes(own, storage_of(plan, options)) == expected


def test_the_125m_model_has_the_parameters_its_maker_names() -> None:
    geometry = geometry_125m()
    assert geometry.backbone_parameters() == 12 * (768 * 1280 + 768 * 768 + 3 * 768 * 2048)
    fp32 = weight_bytes(
        dataclasses.replace(geometry, mtp=False),
        Storage(layers="fp32", head="fp32", vectors="fp32"),
    )
    assert 120e6 < sum(fp32.values()) / 4 < 130e6


SPEC = ModelSpec(
    family="qwen3",
    vocab_size=288,
    hidden_size=64,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=96,
    rms_norm_eps=1e-6,
    qkv_bias=False,
    qk_norm=True,
    tied_head=False,
    rope=RopeSpec(inv_freq=(1.0,) * 8),
    mtp=MtpSpec(concat="embedding_first", tap="post_norm"),
)
ATTENTIONS = {
    "dense": AttentionOptions(),
    "int8": AttentionOptions(kv="int8"),
    "sparse": AttentionOptions(kind="sparse", first_layers=1, budget_tokens=1024),
    "sparse int8": AttentionOptions(kind="sparse", kv="int8", selector="infllm_v2"),
}


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("batch", [1, 3])
def test_states_are_those_that_the_exported_graphs_declare(name, batch) -> None:
    check_states(SPEC, ATTENTIONS[name], batch=batch)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_states_of_the_demo_are_those_that_its_graphs_declare(name) -> None:
    spec = plan_export(DEMO, ExportOptions()).model.spec
    check_states(spec, ATTENTIONS[name], batch=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTENTIONS)
def test_states_of_the_125m_model_are_those_that_its_graphs_declare(source_125m, name) -> None:
    spec = plan_export(source_125m, ExportOptions()).model.spec
    check_states(spec, ATTENTIONS[name], batch=1)


def check_states(spec: ModelSpec, options: AttentionOptions, *, batch: int) -> None:
    """The planner's bytes by kind of state against the shapes that the exporter declares."""
    kv = options.kv or "fp32"
    attention = options.plan(spec)
    own = attention_of(spec, attention, kv=kv)
    declared = declared_states(spec, attention, kv=kv, batch=batch)
    for graph, ops in (("backbone", own.layers), ("mtp", own.mtp)):
        assert declared[graph] and state_bytes(ops, context=1000, batch=batch) == declared[graph]


def declared_states(
    spec: ModelSpec,
    attention: AttentionPlan | None = None,
    *,
    kv: Any,
    batch: int,
    row_dtype: Any = "fp32",
    target: TargetName = "cpu",
) -> dict[str, dict[str, int]]:
    """Bytes by graph and kind of state, for 1000 tokens."""
    pytest.importorskip("torch", reason="the exporter: pip install 'selfdraft[export]'")
    from selfdraft.export.graph import graph_ops, graph_spec
    from selfdraft.export.targets import TARGETS

    declared: dict[str, dict[str, int]] = {}
    for graph in ("backbone", "mtp"):
        ops = graph_ops(graph, spec, attention, kv_dtype=kv, row_dtype=row_dtype)
        kinds = declared.setdefault(graph, {})
        for state in graph_spec(graph, spec, ops, candidates=8, engine=TARGETS[target]).states:
            shape = state.sizes(batch=batch, capacity=capacity_for(1000))
            size = math.prod(shape) * np.dtype(state.dtype).itemsize
            kinds[state.kind] = kinds.get(state.kind, 0) + size
    return declared


def test_a_tied_head_costs_nothing_unless_it_is_stored_otherwise() -> None:
    tied = dataclasses.replace(geometry_125m(), tied_head=True)
    shared = weight_bytes(tied, device_storage(tied, weights="int4", head="fp16"))
    own = weight_bytes(tied, device_storage(tied, weights="int4", head="int4"))
    assert "lm_head" not in shared and own["lm_head"] == 768 * 32_000 * (0.5 + 2 / 128)


def test_a_device_stores_int4_with_fp16_scales_of_the_largest_block() -> None:
    geometry = geometry_125m()
    storage = device_storage(geometry, weights="int4", head="fp16")
    assert storage.block == 128 and storage.label == "int4 g128, LM head fp16"
    assert storage.layer_bytes(geometry.backbone()) == geometry.backbone_parameters() * 66 // 128
