"""MiniCPM4, GLM-4 and DeepSeek's MTP naming: what their keys and names lead to."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import write_checkpoint
from support.refusals import refused

from selfdraft.export.attention_options import AttentionOptions
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.families import ModelPlan, read_model
from selfdraft.export.families.rope import head_order

SPARSE = {
    "kernel_size": 32,
    "kernel_stride": 16,
    "init_blocks": 1,
    "block_size": 64,
    "window_size": 2048,
    "topk": 64,
    "use_nope": False,
    "dense_len": 8192,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 256,
}


def plan_of(folder: Path, family: str, *, context: int | None = None, **options: Any) -> ModelPlan:
    checkpoint = Checkpoint.open(write_checkpoint(folder, family, **options))
    return read_model(checkpoint, context=context)


# DeepSeek's naming


def test_head_behind_the_last_layer_is_no_layer(tmp_path) -> None:
    plan = plan_of(tmp_path, "glm4", mtp="deepseek", layers=3)
    mtp = plan.spec.mtp
    assert plan.spec.num_layers == 3 and mtp is not None
    assert (mtp.concat, mtp.tap, mtp.recycle) == ("embedding_first", "post_norm", "post_norm")
    sources = {rule.target: rule.sources for rule in plan.rules}
    assert sources["mtp.proj.weight"] == ("model.layers.3.eh_proj.weight",)
    assert sources["mtp.hidden_norm"] == ("model.layers.3.hnorm.weight",)
    assert sources["mtp.embedding_norm"] == ("model.layers.3.enorm.weight",)
    assert sources["mtp.final_norm"] == ("model.layers.3.shared_head.norm.weight",)


def test_copies_of_embedding_and_head_are_left_out_and_others_refused(tmp_path) -> None:
    first = Checkpoint.open(write_checkpoint(tmp_path / "a", "llama", mtp="deepseek"))
    copies = {
        "model.layers.2.embed_tokens.weight": first.read("model.embed_tokens.weight"),
        "model.layers.2.shared_head.head.weight": first.read("lm_head.weight"),
    }
    plan = plan_of(tmp_path / "b", "llama", mtp="deepseek", extra=copies)
    assert set(plan.ignored) == set(copies)
    assert "model.embed_tokens.weight" in plan.ignored["model.layers.2.embed_tokens.weight"]
    other = {name: array + 1 for name, array in copies.items()}
    with refused("model.layers.2.embed_tokens.weight", "differs"):
        plan_of(tmp_path / "c", "llama", mtp="deepseek", extra=other)


def test_promised_head_of_this_naming_is_missed_by_its_name(tmp_path) -> None:
    with refused("num_nextn_predict_layers = 1", "model.layers.2.enorm.weight"):
        plan_of(tmp_path, "glm4", mtp=None, config={"num_nextn_predict_layers": 1})


def test_head_without_a_key_is_used_with_a_note(tmp_path) -> None:
    plan = plan_of(tmp_path, "glm4", mtp="deepseek", config={"num_nextn_predict_layers": ...})
    assert plan.spec.mtp is not None
    assert any("model.layers.2.*" in note for note in plan.notes)


def test_second_head_and_missing_parts_are_named(tmp_path) -> None:
    name = "model.layers.3.eh_proj.weight"
    with refused(repr(name), "more than one"):
        plan_of(tmp_path / "a", "glm4", mtp="deepseek", extra={name: np.ones((64, 128))})
    name = "model.layers.2.shared_head.norm.weight"
    with refused(repr(name), "missing"):
        plan_of(tmp_path / "b", "glm4", mtp="deepseek", drop=(name,))
    name = "model.layers.2.post_mlp_layernorm.weight"
    with refused(repr(name), "missing"):
        plan_of(tmp_path / "c", "glm4", mtp="deepseek", drop=(name,))


# inside a multimodal checkpoint


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model."])
def test_language_model_inside_another_is_the_same_model(tmp_path, prefix) -> None:
    whole = plan_of(tmp_path / "a", "glm_ocr", mtp="deepseek")
    inner = plan_of(tmp_path / "b", "glm_ocr", mtp="deepseek", prefix=prefix)
    assert inner.spec == whole.spec and inner.rules == whole.rules


def test_other_towers_are_left_out_and_reported(tmp_path) -> None:
    towers = {f"model.visual.blocks.{i}.w": np.ones((4, 4), dtype=np.float32) for i in range(3)}
    folder = write_checkpoint(
        tmp_path, "glm_ocr", mtp=None, prefix="model.language_model.", extra=towers
    )
    plan = read_model(Checkpoint.open(folder))
    assert list(plan.ignored) == ["model.visual.*"]
    assert "3 tensors" in plan.ignored["model.visual.*"]
    assert plan.ignored["model.visual.*"] in plan.notes


def test_tensor_with_and_without_the_prefix_is_refused(tmp_path) -> None:
    extra = {"model.language_model.norm.weight": np.ones(64, dtype=np.float32)}
    with refused("model.norm.weight", "with and without"):
        plan_of(tmp_path, "qwen3", extra=extra)


@pytest.mark.parametrize("tied", [True, False])
def test_tensors_decide_where_outer_and_inner_config_disagree_on_the_head(tmp_path, tied) -> None:
    folder = write_checkpoint(tmp_path, "qwen3", prefix="model.language_model.", tied=tied)
    config = (folder / "config.json").read_text()
    outer = f'{{"tie_word_embeddings": {str(not tied).lower()},' + config[1:]
    (folder / "config.json").write_text(outer)
    assert read_model(Checkpoint.open(folder)).spec.tied_head is tied


# GLM-4


def test_interleaved_and_partial_rotation_become_one_order() -> None:
    assert head_order("half", head_dim=8, rotated=8) is None
    assert head_order("interleaved", head_dim=8, rotated=8) == (0, 2, 4, 6, 1, 3, 5, 7)
    assert head_order("half", head_dim=8, rotated=4) == (0, 1, 4, 5, 2, 3, 6, 7)
    assert head_order("interleaved", head_dim=8, rotated=4) == (0, 2, 4, 5, 1, 3, 6, 7)


def test_pairs_that_are_not_rotated_have_frequency_zero(tmp_path) -> None:
    rope = plan_of(tmp_path, "glm4").spec.rope
    assert rope.inv_freq[4:] == (0.0,) * 4
    assert rope.inv_freq[:4] == tuple(10_000.0 ** (-i / 4) for i in range(4))


@pytest.mark.parametrize("factor", [0.2, 0.0, 1.5])
def test_part_of_a_head_that_cannot_be_rotated_is_refused(tmp_path, factor) -> None:
    with refused("head_dim 16", "rotated"):
        plan_of(tmp_path, "glm4", config={"partial_rotary_factor": factor})


def test_order_applies_to_queries_and_keys_alone(tmp_path) -> None:
    rules = {rule.target: rule for rule in plan_of(tmp_path, "glm4").rules}
    order = (0, 2, 4, 6, 8, 9, 10, 11, 1, 3, 5, 7, 12, 13, 14, 15)
    for name in ("qkv.weight", "qkv.bias"):
        assert rules[f"backbone.layers.0.{name}"].head_orders == (order, order, None)
    assert rules["backbone.layers.0.o.weight"].head_orders == ()


# MiniCPM


def test_scalings_are_folded_into_the_weights(tmp_path) -> None:
    plan = plan_of(tmp_path, "minicpm", mtp=None, layers=4)
    factors = {rule.target: rule.factor for rule in plan.rules if rule.factor != 1.0}
    depth = 1.4 / math.sqrt(4)
    layers = {f"backbone.layers.{i}.{m}.weight": depth for i in range(4) for m in ("o", "down")}
    assert factors == {"embedding": 12, "lm_head.weight": 16 / 64} | layers


def test_tied_head_takes_the_scalings_into_the_final_norm(tmp_path) -> None:
    plan = plan_of(tmp_path, "minicpm", mtp=None, tied=True)
    factors = {rule.target: rule.factor for rule in plan.rules}
    assert factors["backbone.norm"] == 16 / 64 / 12 and factors["embedding"] == 12
    with refused("MTP head on a tied LM head"):
        plan_of(tmp_path / "b", "minicpm", mtp="deepseek", tied=True)


def test_minicpm_is_tied_where_the_config_is_silent(tmp_path) -> None:
    silent = {"tie_word_embeddings": ...}
    assert plan_of(tmp_path / "a", "minicpm", mtp=None, tied=True, config=silent).spec.tied_head
    with refused("no tie_word_embeddings", "differs"):
        plan_of(tmp_path / "b", "minicpm", mtp=None, config=silent)


@pytest.mark.parametrize("key", ["scale_emb", "scale_depth", "dim_model_base"])
def test_scaling_that_is_no_factor_is_refused(tmp_path, key) -> None:
    with refused(key, "= 0"):
        plan_of(tmp_path, "minicpm", mtp=None, config={key: 0})


def test_sparse_config_becomes_the_selector_of_every_layer(tmp_path) -> None:
    plan = plan_of(tmp_path, "minicpm", mtp="deepseek", config={"sparse_config": SPARSE})
    attention = AttentionOptions().plan(plan.spec, plan.sparse)
    assert attention is not None and len(attention.layers) == 2
    for layer in attention.layers:
        assert (layer.selector, layer.sinks, layer.local_blocks) == ("infllm_v2", 1, 33)
        assert layer.budget_tokens == 96 * 64
    assert attention.mtp is not None and attention.mtp.selector == "window"
    assert AttentionOptions(kind="dense").plan(plan.spec, plan.sparse) is None
    chosen = AttentionOptions(kind="sparse", selector="mean_std").plan(plan.spec, plan.sparse)
    assert chosen is not None and chosen.layers[0].selector == "mean_std"


def test_without_sparse_config_attention_is_dense(tmp_path) -> None:
    plan = plan_of(tmp_path, "minicpm", mtp=None, config={"sparse_config": None})
    assert plan.sparse is None and AttentionOptions().plan(plan.spec, plan.sparse) is None
    other = plan_of(tmp_path / "b", "llama", config={"sparse_config": SPARSE})
    assert other.sparse is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kernel_size": 64}, "kernel_size 64"),
        ({"block_size": 128}, "block_size 128"),
        ({"use_nope": True}, "use_nope"),
        ({"window_size": 2000}, "window_size = 2000"),
        ({"topk": None}, "has no topk"),
    ],
)
def test_sparse_config_that_the_op_does_not_implement_is_refused(tmp_path, change, named) -> None:
    with refused(named):
        plan_of(tmp_path, "minicpm", mtp=None, config={"sparse_config": SPARSE | change})


def test_longrope_takes_its_long_factors_where_the_bundle_outgrows_the_training(tmp_path) -> None:
    config = {"rope_scaling": LONGROPE}
    short = plan_of(tmp_path / "a", "minicpm", mtp=None, config=config, context=256).spec.rope
    long = plan_of(tmp_path / "b", "minicpm", mtp=None, config=config, context=257).spec.rope
    silent = plan_of(tmp_path / "c", "minicpm", mtp=None, config=config).spec.rope
    np.testing.assert_allclose(np.array(short.inv_freq) / 4, long.inv_freq)
    assert silent == long  # max_position_embeddings is 512
    assert short.scale == long.scale == math.sqrt(1 + math.log(2) / math.log(256))


@pytest.mark.parametrize("factors", [[1.0] * 7, "all", [1.0] * 7 + [0], None])
def test_longrope_factors_that_do_not_fit_are_refused(tmp_path, factors) -> None:
    with refused("long_factor", "expected 8"):
        config = {"rope_scaling": LONGROPE | {"long_factor": factors}}
        plan_of(tmp_path, "minicpm", mtp=None, config=config)
