from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import write_checkpoint
from support.refusals import refused

from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.families import ModelPlan, read_model

FAMILIES = ("mimo", "qwen2", "qwen3", "llama")
LAYER_0 = "model.layers.0."


def plan_of(folder: Path, family: str = "mimo", **options: Any) -> ModelPlan:
    return read_model(Checkpoint.open(write_checkpoint(folder, family, **options)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mtp", ["mimo", "qwen", None])
def test_geometry_and_targets_follow_the_architecture_page(tmp_path, family, mtp) -> None:
    plan = plan_of(tmp_path, family, mtp=mtp)
    spec = plan.spec
    assert (spec.family, spec.vocab_size, spec.hidden_size) == (family, 288, 64)
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (2, 4, 2, 16)
    assert (spec.intermediate_size, spec.tied_head) == (96, False)
    assert spec.qkv_bias == (family in ("mimo", "qwen2"))
    assert spec.qk_norm == (family == "qwen3")
    layer = {
        "input_norm": (64,),
        "qkv.weight": (64, 128),
        "o.weight": (64, 64),
        "post_norm": (64,),
        "gate_up.weight": (64, 192),
        "down.weight": (96, 64),
    }
    if spec.qkv_bias:
        layer["qkv.bias"] = (128,)
    if spec.qk_norm:
        layer |= {"q_norm": (16,), "k_norm": (16,)}
    expected = {"embedding": (288, 64), "backbone.norm": (64,), "lm_head.weight": (64, 288)}
    prefixes = ["backbone.layers.0.", "backbone.layers.1."]
    if mtp:
        prefixes.append("mtp.layer.")
        expected |= {f"mtp.{name}_norm": (64,) for name in ("hidden", "embedding", "final")}
        expected["mtp.proj.weight"] = (128, 64)
    expected |= {p + name: shape for p in prefixes for name, shape in layer.items()}
    assert {rule.target: rule.shape for rule in plan.rules} == expected


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mtp", ["mimo", "qwen"])
def test_every_tensor_is_used_exactly_once(tmp_path, family, mtp) -> None:
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path, family, mtp=mtp))
    used = [source for rule in read_model(checkpoint).rules for source in rule.sources]
    assert sorted(used) == list(checkpoint.names())


def test_queries_keys_and_values_are_joined_in_this_order(tmp_path) -> None:
    rules = {rule.target: rule for rule in plan_of(tmp_path).rules}
    assert [s.split(".")[-2] for s in rules["backbone.layers.1.qkv.weight"].sources] == [
        "q_proj",
        "k_proj",
        "v_proj",
    ]
    assert [s.split(".")[-2] for s in rules["mtp.layer.gate_up.weight"].sources] == [
        "gate_proj",
        "up_proj",
    ]


def test_model_type_decides_where_architectures_is_absent(tmp_path) -> None:
    assert plan_of(tmp_path, "qwen3", config={"architectures": ...}).spec.family == "qwen3"


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"architectures": ["Qwen3MoeForCausalLM"]}, ("Qwen3MoeForCausalLM", "'Qwen3ForCausalLM'")),
        ({"architectures": ["Qwen2ForSequenceClassification"]}, ("'Qwen2ForCausalLM'",)),
        ({"architectures": ..., "model_type": "lama"}, ("'lama'", "'llama'")),
        ({"architectures": [], "model_type": ...}, ("model_type",)),
    ],
)
def test_unknown_architecture_is_refused_with_the_nearest(tmp_path, config, named) -> None:
    with refused("not a known model", *named):
        plan_of(tmp_path, config=config)


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["Qwen3_5MoeForConditionalGeneration"]},
        {"architectures": ["Qwen3NextForCausalLM"]},
        {"architectures": ..., "model_type": "qwen3_5_moe_text"},
    ],
)
def test_hybrid_model_with_experts_is_refused_for_them(tmp_path, config) -> None:
    with refused("mixtures of experts", "not supported"):
        plan_of(tmp_path, config=config)


@pytest.mark.parametrize(
    ("key", "value", "tensor"),
    [
        ("vocab_size", 300, "[288, 64]"),
        ("hidden_size", 128, "[288, 64]"),
        ("intermediate_size", 64, "mlp.gate_proj.weight"),
        ("num_attention_heads", 8, "self_attn.q_proj.weight"),
        ("num_key_value_heads", 4, "self_attn.k_proj.weight"),
        ("head_dim", 32, "self_attn.q_proj.weight"),
        ("head_dim", 12, "self_attn.q_proj.weight"),
        ("num_hidden_layers", 1, "model.layers.1."),
        ("num_hidden_layers", 3, "model.layers.2."),
        ("num_hidden_layers", 10**12, "model.layers.2."),
    ],
)
def test_config_that_clashes_with_tensors_is_refused(tmp_path, key, value, tensor) -> None:
    with refused(key, str(value), tensor):
        plan_of(tmp_path, config={key: value})


def test_head_dim_of_the_norm_wins_and_a_clash_names_it(tmp_path) -> None:
    with refused("head_dim = 32", "q_norm.weight", "[16]"):
        plan_of(tmp_path, "qwen3", config={"head_dim": 32})
    assert plan_of(tmp_path / "b", "qwen3", config={"head_dim": ...}).spec.head_dim == 16


def test_absent_keys_are_taken_from_tensors_and_documented_defaults(tmp_path) -> None:
    absent = dict.fromkeys(
        [
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_key_value_heads",
            "head_dim",
            "rope_theta",
            "rms_norm_eps",
            "max_position_embeddings",
            "tie_word_embeddings",
            "hidden_act",
        ],
        ...,
    )
    whole = plan_of(tmp_path / "a", "llama")
    plan = plan_of(tmp_path / "b", "llama", config=absent)
    assert plan.spec == whole.spec
    assert (whole.max_context, plan.max_context) == (512, 2048)


def test_head_dim_that_cannot_be_known_is_refused(tmp_path) -> None:
    with refused("head_dim", "num_attention_heads = 5"):
        plan_of(tmp_path, config={"head_dim": ..., "num_attention_heads": 5})


def test_query_heads_that_do_not_share_key_heads_are_refused(tmp_path) -> None:
    with refused("4 query heads", "3 key heads"):
        plan_of(tmp_path, kv_heads=3)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "64"),
        ("num_hidden_layers", 2.0),
        ("num_attention_heads", 0),
        ("tie_word_embeddings", 1),
        ("rope_theta", "big"),
        ("rms_norm_eps", -1e-6),
        ("hidden_act", 3),
        ("rope_scaling", "linear"),
        ("rope_theta", float("nan")),
        ("rope_theta", float("inf")),
        ("rope_theta", 10**400),
        ("rms_norm_eps", float("nan")),
    ],
)
def test_config_value_of_another_type_is_named(tmp_path, key, value) -> None:
    with refused(key):
        plan_of(tmp_path, config={key: value})


@pytest.mark.parametrize(
    ("family", "config", "named"),
    [
        ("qwen2", {"use_sliding_window": True, "sliding_window": 256}, "sliding_window = 256"),
        ("llama", {"sliding_window": 128}, "sliding_window = 128"),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ("llama", {"hidden_act": "gelu"}, "gelu"),
        ("llama", {"mlp_bias": True}, "mlp_bias"),
        ("qwen3", {"quantization_config": {"quant_method": "hqq"}}, "hqq"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("qwen3", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ("llama", {"rope_parameters": {"rope_type": "proportional"}}, "proportional"),
        ("llama", {"rope_parameters": {"full_attention": {}}}, "full_attention"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0, "beta": 1}}, "beta"),
    ],
)
def test_arithmetic_that_the_graphs_do_not_follow_is_refused_by_name(
    tmp_path, family, config, named
) -> None:
    with refused(named, "not supported"):
        plan_of(tmp_path, family, config=config)


def test_sliding_window_that_is_switched_off_is_no_obstacle(tmp_path) -> None:
    off = {"use_sliding_window": False, "sliding_window": 256, "max_window_layers": 1}
    assert plan_of(tmp_path, "qwen2", config=off).spec.num_layers == 2
    assert plan_of(tmp_path / "b", "mimo", config={"sliding_window": 256}).spec.num_layers == 2


# tensors: missing, misshaped, left over


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.norm.weight",
        LAYER_0 + "self_attn.q_proj.weight",
        "model.layers.1.self_attn.v_proj.bias",
        "model.layers.1.mlp.down_proj.weight",
        "model.mtp_layers.0.hidden_layernorm.weight",
        "model.mtp_layers.0.self_attn.q_proj.bias",
        "model.mtp_layers.0.mlp.up_proj.weight",
    ],
)
def test_missing_tensor_is_named(tmp_path, name) -> None:
    with refused(repr(name), "missing"):
        plan_of(tmp_path, drop=(name,))


@pytest.mark.parametrize(
    "name", ["mtp.fc.weight", "mtp.norm.weight", "mtp.layers.0.mlp.up_proj.weight"]
)
def test_missing_tensor_of_the_other_mtp_naming_is_named(tmp_path, name) -> None:
    with refused(repr(name), "missing"):
        plan_of(tmp_path, "qwen3", mtp="qwen", drop=(name,))


def test_missing_middle_layer_is_named(tmp_path) -> None:
    names = [n for n in Checkpoint.open(write_checkpoint(tmp_path, layers=3)).names()]
    middle = tuple(name for name in names if name.startswith("model.layers.1."))
    with refused("model.layers.1.", "missing"):
        plan_of(tmp_path / "b", layers=3, drop=middle)


def test_layer_index_far_away_is_refused_at_once(tmp_path) -> None:
    extra = {"model.layers.99999999999.input_layernorm.weight": np.ones(64, dtype=np.float32)}
    with refused("model.layers.2.", "missing"):
        plan_of(tmp_path, extra=extra)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("model.norm.weight", (63,), "[64]"),
        (LAYER_0 + "self_attn.v_proj.weight", (16, 64), "[32, 64]"),
        (LAYER_0 + "self_attn.o_proj.weight", (64, 32), "[64, 64]"),
        ("model.layers.1.mlp.gate_proj.weight", (80, 64), "[96, 64]"),
        ("model.mtp_layers.0.input_proj.weight", (64, 64), "[64, 128]"),
        ("model.mtp_layers.0.final_layernorm.weight", (64, 1), "[64]"),
        ("lm_head.weight", (287, 64), "[288, 64]"),
    ],
)
def test_misshaped_tensor_is_named_with_both_shapes(tmp_path, name, shape, expected) -> None:
    with refused(repr(name), str(list(shape)), expected):
        plan_of(tmp_path, extra={name: np.ones(shape, dtype=np.float32)})


def test_embedding_that_is_no_matrix_is_refused(tmp_path) -> None:
    extra = {"model.embed_tokens.weight": np.ones(64, dtype=np.float32)}
    with refused("model.embed_tokens.weight", "[64]"):
        plan_of(tmp_path, extra=extra)


def test_quantised_tensor_is_refused_before_anything_is_written(tmp_path) -> None:
    name = LAYER_0 + "mlp.up_proj.weight"
    with refused(name, "I8"):
        plan_of(tmp_path, extra={name: np.ones((96, 64), dtype=np.int8)})


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("mimo", LAYER_0 + "self_attn.o_proj.bias"),
        ("llama", LAYER_0 + "self_attn.q_norm.weight"),
        ("qwen3", "model.layers.1.mlp.experts.0.up_proj.weight"),
        ("qwen2", "mtp.embed_tokens.weight"),
        ("qwen2", "score.weight"),
    ],
)
def test_left_over_tensor_is_an_error_that_names_it(tmp_path, family, name) -> None:
    mtp = "qwen" if name.startswith("mtp.") else None
    with refused(repr(name)):
        plan_of(tmp_path, family, mtp=mtp, extra={name: np.ones(64, dtype=np.float32)})


def test_many_left_over_tensors_are_counted(tmp_path) -> None:
    extra = {f"vision.{i}": np.ones(1, dtype=np.float32) for i in range(5)}
    with refused("'vision.0'", "2 more"):
        plan_of(tmp_path, extra=extra)


def test_rotary_buffers_are_ignored_with_the_reason(tmp_path) -> None:
    name = "model.layers.1.self_attn.rotary_emb.inv_freq"
    plan = plan_of(tmp_path, "llama", extra={name: np.ones(8, dtype=np.float32)})
    assert list(plan.ignored) == [name] and "config.json" in plan.ignored[name]


# biases


def test_bias_of_llama_and_qwen3_follows_the_tensors(tmp_path) -> None:
    extra = {}
    for layer in ("model.layers.0.", "model.layers.1.", "model.mtp_layers.0."):
        for proj, size in (("q", 64), ("k", 32), ("v", 32)):
            extra[f"{layer}self_attn.{proj}_proj.bias"] = np.ones(size, dtype=np.float32)
    for family in ("llama", "qwen3"):
        assert plan_of(tmp_path / family, family, extra=extra).spec.qkv_bias
        with refused("attention_bias = false", "q_proj.bias"):
            config = {"attention_bias": False}
            plan_of(tmp_path / f"{family}2", family, extra=extra, config=config)
    extra.popitem()
    with refused("model.mtp_layers.0.self_attn.v_proj.bias", "missing"):
        plan_of(tmp_path / "part", "llama", extra=extra)


def test_promised_bias_that_is_missing_is_named(tmp_path) -> None:
    with refused("attention_bias = true", "q_proj.bias"):
        plan_of(tmp_path, "llama", config={"attention_bias": True})


# LM head


def test_tied_head_needs_no_tensor_and_a_copy_is_ignored(tmp_path) -> None:
    plan = plan_of(tmp_path / "a", "qwen2", tied=True)
    assert plan.spec.tied_head and plan.ignored == {}
    assert "lm_head.weight" not in {rule.target for rule in plan.rules}
    checkpoint = Checkpoint.open(tmp_path / "a")
    copy = {"lm_head.weight": checkpoint.read("model.embed_tokens.weight")}
    plan = plan_of(tmp_path / "b", "qwen2", tied=True, extra=copy)
    assert plan.spec.tied_head and list(plan.ignored) == ["lm_head.weight"]
    with refused("tie_word_embeddings", "lm_head.weight", "differs"):
        other = {"lm_head.weight": np.ones((288, 64), dtype=np.float32)}
        plan_of(tmp_path / "c", "qwen2", tied=True, extra=other)


@pytest.mark.parametrize("value", [False, ...])
def test_untied_model_without_a_head_is_refused(tmp_path, value) -> None:
    with refused("lm_head.weight", "missing"):
        plan_of(tmp_path, tied=True, config={"tie_word_embeddings": value})


# MTP head


def test_naming_of_the_head_decides_the_wiring(tmp_path) -> None:
    for family in FAMILIES:
        mimo = plan_of(tmp_path / f"{family}m", family, mtp="mimo").spec.mtp
        qwen = plan_of(tmp_path / f"{family}q", family, mtp="qwen").spec.mtp
        assert mimo and (mimo.concat, mimo.tap) == ("hidden_first", "pre_norm")
        assert qwen and (qwen.concat, qwen.tap) == ("embedding_first", "post_norm")
        assert mimo.recycle == qwen.recycle == "post_norm"
        assert not mimo.mask_first_embedding and not qwen.mask_first_embedding


def test_sources_of_the_head_are_not_swapped(tmp_path) -> None:
    expected = {
        "mimo": {
            "mtp.hidden_norm": "model.mtp_layers.0.hidden_layernorm.weight",
            "mtp.embedding_norm": "model.mtp_layers.0.token_layernorm.weight",
            "mtp.final_norm": "model.mtp_layers.0.final_layernorm.weight",
            "mtp.proj.weight": "model.mtp_layers.0.input_proj.weight",
            "mtp.layer.post_norm": "model.mtp_layers.0.post_attention_layernorm.weight",
        },
        "qwen": {
            "mtp.hidden_norm": "mtp.pre_fc_norm_hidden.weight",
            "mtp.embedding_norm": "mtp.pre_fc_norm_embedding.weight",
            "mtp.final_norm": "mtp.norm.weight",
            "mtp.proj.weight": "mtp.fc.weight",
            "mtp.layer.post_norm": "mtp.layers.0.post_attention_layernorm.weight",
        },
    }
    for naming, sources in expected.items():
        rules = {r.target: r.sources for r in plan_of(tmp_path / naming, mtp=naming).rules}
        assert {target: rules[target] for target in sources} == {
            target: (source,) for target, source in sources.items()
        }


def test_model_without_a_head_exports_with_a_notice(tmp_path) -> None:
    for family in FAMILIES:
        plan = plan_of(tmp_path / family, family, mtp=None)
        assert plan.spec.mtp is None
        assert plan.notes == ("no MTP head: speculation is off",)


def test_promised_head_without_tensors_is_an_error_that_names_the_first(tmp_path) -> None:
    key = {"num_nextn_predict_layers": 1}
    with refused("num_nextn_predict_layers = 1", "model.mtp_layers.0.token_layernorm.weight"):
        plan_of(tmp_path / "a", "mimo", mtp=None, config=key)
    with refused("mtp_num_hidden_layers = 1", "mtp.pre_fc_norm_embedding.weight"):
        plan_of(tmp_path / "b", "qwen3", mtp=None, config={"mtp_num_hidden_layers": 1})
    assert (
        plan_of(tmp_path / "c", mtp=None, config={"num_nextn_predict_layers": 0}).spec.mtp is None
    )


@pytest.mark.parametrize("value", [..., 0])
def test_head_that_the_config_does_not_name_is_used_with_a_note(tmp_path, value) -> None:
    plan = plan_of(tmp_path, config={"num_nextn_predict_layers": value})
    assert plan.spec.mtp is not None
    assert len(plan.notes) == 1 and "model.mtp_layers.*" in plan.notes[0]


def test_several_heads_are_refused_by_key_and_by_tensor(tmp_path) -> None:
    with refused("num_nextn_predict_layers = 3", "more than one"):
        plan_of(tmp_path / "a", config={"num_nextn_predict_layers": 3})
    name = "model.mtp_layers.1.input_proj.weight"
    with refused(repr(name), "more than one"):
        plan_of(tmp_path / "b", extra={name: np.ones((64, 128), dtype=np.float32)})
    name = "mtp.layers.1.input_layernorm.weight"
    with refused(repr(name), "more than one"):
        plan_of(tmp_path / "c", mtp="qwen", extra={name: np.ones(64, dtype=np.float32)})


def test_two_namings_at_once_are_refused(tmp_path) -> None:
    with refused("mtp.norm.weight", "model.mtp_layers.0."):
        plan_of(tmp_path, extra={"mtp.norm.weight": np.ones(64, dtype=np.float32)})


def test_code_of_a_checkpoint_is_not_run(tmp_path) -> None:
    folder = write_checkpoint(tmp_path)
    (folder / "modeling_mimo.py").write_text("raise SystemExit('code of the checkpoint ran')")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_mimo.MiMoForCausalLM"}
    (folder / "config.json").write_text(json.dumps(config))
    assert any("auto_map" in note for note in read_model(Checkpoint.open(folder)).notes)
