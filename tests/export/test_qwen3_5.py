"""Qwen3.5 bundles: backbone against transformers, MTP head against a transcription of its formula."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.checkpoints import Tensors
from support.hybrid import CONFIG, write_hybrid
from support.refusals import refused

from selfdraft.export.bundle import export_bundle, plan_export
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.families import ModelPlan, read_model
from selfdraft.export.layerwise import run_backbone, run_mtp
from selfdraft.export.options import ExportOptions
from selfdraft.export.weight_reader import CheckpointReader
from selfdraft.runtime.backend import Step
from selfdraft.runtime.reference import ReferenceBackend

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed (dev)")

MOST = 1e-4
"""Largest difference of a logit, fp32 against fp64."""
LENGTH = 48
PREFIX = "model.language_model."
Array = NDArray[np.float64]


def whole_step(length: int) -> Step:
    one = np.ones(1, dtype=np.int64)
    return Step(
        past_len=one * 0, row_count=one * length, attend_all=one, row_index=np.arange(length)[None]
    )


def reference(folder: Path) -> ReferenceBackend:
    export_bundle(folder / "c", folder / "bundle", ExportOptions())
    return ReferenceBackend.from_bundle(folder / "bundle")


def plan_of(folder: Path, **options: Any) -> ModelPlan:
    write_hybrid(folder, **options)
    return read_model(Checkpoint.open(folder))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("prefix", ["", PREFIX])
def test_logits_of_the_backbone_are_those_of_transformers(
    tmp_path, fake_graphs, prefix, tied
) -> None:
    changes = {"tie_word_embeddings": tied}
    tensors = write_hybrid(tmp_path / "c", changes=changes, prefix=prefix)
    settings = {k: v for k, v in (CONFIG | changes).items() if k != "architectures"}
    model = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**settings)).float()
    state = {k: torch.from_numpy(v) for k, v in tensors.items() if not k.startswith("mtp.")}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) == ({"lm_head.weight"} if tied else set())
    model.tie_weights()
    ids = np.random.default_rng(7).integers(0, 256, (1, LENGTH))
    with torch.no_grad():
        expected = model.eval()(torch.from_numpy(ids)).logits[0].numpy()
    backend = reference(tmp_path)
    states = backend.allocate(batch=1, capacity=128)
    found = backend.run_backbone(states, whole_step(LENGTH), ids).logits[0]
    assert np.abs(expected).max() > 0.5
    assert np.abs(found - expected).max() <= MOST


# MTP head: a transcription of the published formula, which shares nothing with the exporter


def rms(x: Array, weight: Any) -> Array:
    """The norms of the checkpoint: stored as w - 1."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * (1.0 + weight)


def linear(x: Array, weight: Any) -> Array:
    return x @ weight.astype(np.float64).T


def published_head(tensors: Tensors, hidden: Array, following: list[int]) -> Array:
    """Logits ``[T, V]``: row p from ``concat(norm(E[x_{p+1}]), norm(h_p))`` at position p."""
    t = {name.removeprefix("mtp."): array for name, array in tensors.items()}
    token = tensors["model.embed_tokens.weight"][following].astype(np.float64)
    joined = np.concatenate(
        [
            rms(token, t["pre_fc_norm_embedding.weight"]),
            rms(hidden, t["pre_fc_norm_hidden.weight"]),
        ],
        axis=-1,
    )
    x = linear(joined, t["fc.weight"])
    layer = {n.removeprefix("layers.0."): a for n, a in t.items() if n.startswith("layers.0.")}
    x = x + gated_attention(layer, rms(x, layer["input_layernorm.weight"]))
    y = rms(x, layer["post_attention_layernorm.weight"])
    gate = linear(y, layer["mlp.gate_proj.weight"])
    up = linear(y, layer["mlp.up_proj.weight"])
    x = x + linear(gate / (1 + np.exp(-gate)) * up, layer["mlp.down_proj.weight"])
    return linear(rms(x, t["norm.weight"]), tensors["lm_head.weight"])


def gated_attention(layer: Tensors, x: Array) -> Array:
    rows, heads, kv_heads, dim = len(x), 6, 2, 16
    both = linear(x, layer["self_attn.q_proj.weight"]).reshape(rows, heads, 2, dim)
    q, gate = rms(both[:, :, 0], layer["self_attn.q_norm.weight"]), both[:, :, 1]
    k = linear(x, layer["self_attn.k_proj.weight"]).reshape(rows, kv_heads, dim)
    k = rms(k, layer["self_attn.k_norm.weight"])
    v = linear(x, layer["self_attn.v_proj.weight"]).reshape(rows, kv_heads, dim)
    q, k = rotated(q), rotated(k)
    y = np.zeros((rows, heads, dim))
    for head in range(heads):
        own = head // (heads // kv_heads)
        for row in range(rows):
            scores = k[: row + 1, own] @ q[row, head] / np.sqrt(dim)
            chances = np.exp(scores - scores.max())
            y[row, head] = chances @ v[: row + 1, own] / chances.sum()
    y = y / (1 + np.exp(-gate))
    return linear(y.reshape(rows, -1), layer["self_attn.o_proj.weight"])


def rotated(x: Array) -> Array:
    """The first quarter of each head, rotate-half, theta 1e7."""
    turned, rest = x[..., :4], x[..., 4:]
    angles = np.arange(len(x))[:, None, None] * 1e7 ** (-np.arange(0, 4, 2) / 4)
    cos, sin = np.tile(np.cos(angles), 2), np.tile(np.sin(angles), 2)
    half = np.concatenate([-turned[..., 2:], turned[..., :2]], axis=-1)
    return np.concatenate([turned * cos + half * sin, rest], axis=-1)


def test_mtp_head_computes_the_published_formula(tmp_path, fake_graphs) -> None:
    tensors = write_hybrid(tmp_path / "c", prefix=PREFIX)
    backend = reference(tmp_path)
    ids = np.random.default_rng(8).integers(0, 256, LENGTH + 1)
    states = backend.allocate(batch=1, capacity=128)
    hidden = backend.run_backbone(states, whole_step(LENGTH), ids[None, :-1]).hidden
    output = backend.run_mtp(states, whole_step(LENGTH), ids[None, 1:], hidden)
    expected = published_head(tensors, hidden[0], ids[1:].tolist())
    best = np.argsort(-expected, axis=-1)[:, : output.top_ids.shape[-1]]
    np.testing.assert_array_equal(output.top_ids[0], best)
    found = output.top_values[0]
    assert np.abs(found - np.take_along_axis(expected, best, axis=-1)).max() <= 1e-9


def test_torch_layers_over_a_text_are_the_reference(tmp_path, fake_graphs) -> None:
    """What graphs are traced from, before any graph: layer by layer, as a calibration runs them."""
    write_hybrid(tmp_path / "c", prefix=PREFIX)
    backend = reference(tmp_path)
    ids = np.random.default_rng(9).integers(0, 256, (2, 40))
    both = np.ones(2, dtype=np.int64)
    index = np.tile(np.arange(40), (2, 1))
    step = Step(past_len=both * 0, row_count=both * 40, attend_all=both, row_index=index)
    states = backend.allocate(batch=2, capacity=64)
    expected = backend.run_backbone(states, step, ids).hidden
    plan = plan_export(tmp_path / "c", ExportOptions())
    spec, reader = (
        plan.weights.spec,
        CheckpointReader(plan.checkpoint, plan.model, plan.weights),
    )
    hidden = run_backbone(spec, reader, reader, ids).post_norm
    assert np.abs(hidden.numpy() - expected).max() <= MOST
    drafted = run_mtp(spec, reader, reader, ids, hidden).numpy()
    rows = Step(past_len=both * 0, row_count=both * 39, attend_all=both, row_index=index[:, :39])
    found = backend.run_mtp(states, rows, ids[:, 1:], expected[:, :-1]).hidden
    assert np.abs(drafted - found).max() <= MOST


def test_wiring_of_the_head_is_in_the_manifest(tmp_path) -> None:
    mtp = plan_of(tmp_path).spec.mtp
    assert mtp is not None
    assert (mtp.concat, mtp.tap, mtp.recycle) == ("embedding_first", "post_norm", "post_norm")
    assert (mtp.norm, mtp.position) == ("offset", "same")


# the plan


def test_language_model_inside_a_multimodal_checkpoint_is_the_same_plan(tmp_path) -> None:
    text, inside = plan_of(tmp_path / "a"), plan_of(tmp_path / "b", prefix=PREFIX)
    assert inside.spec == text.spec and inside.rules == text.rules
    assert list(inside.ignored) == ["model.visual.*"]
    assert inside.architecture == "Qwen3_5ForConditionalGeneration"


def test_layers_are_told_by_their_tensors_where_the_config_is_silent(tmp_path) -> None:
    silent = {"layer_types": ..., "full_attention_interval": ...}
    delta = plan_of(tmp_path, changes=silent).spec.delta
    assert delta is not None and delta.layers == (0, 1, 2)
    assert (delta.num_key_heads, delta.num_value_heads) == (2, 6)
    assert (delta.key_dim, delta.value_dim, delta.taps) == (12, 8, 4)


def test_interval_alone_names_the_layers_that_attend(tmp_path) -> None:
    delta = plan_of(tmp_path, changes={"layer_types": ...}).spec.delta
    assert delta is not None and delta.layers == (0, 1, 2)


def test_silent_config_means_the_defaults_of_transformers(tmp_path) -> None:
    silent = dict.fromkeys(("rms_norm_eps", "rope_parameters", "max_position_embeddings"), ...)
    plan, default = plan_of(tmp_path, changes=silent), transformers.Qwen3_5TextConfig(head_dim=16)
    rope = default.rope_parameters
    rotated = int(16 * rope["partial_rotary_factor"])
    frequencies = [rope["rope_theta"] ** (-i / rotated) for i in range(0, rotated, 2)]
    assert plan.spec.rope.inv_freq == pytest.approx((*frequencies, *[0.0] * (8 - rotated // 2)))
    assert plan.spec.rms_norm_eps == default.rms_norm_eps
    assert plan.max_context == default.max_position_embeddings


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"layer_types": ["full_attention"] * 4}, "layer 0 is full attention"),
        ({"layer_types": ["linear_attention"] * 3}, "3 entries for 4 layers"),
        ({"layer_types": ["mamba"] * 4}, "'mamba'"),
        ({"layer_types": [["linear_attention"]] * 4}, "['linear_attention']"),
        ({"layer_types": ..., "full_attention_interval": 3}, "full_attention_interval = 3"),
        ({"linear_num_value_heads": 4}, "linear_num_value_heads = 4"),
        ({"linear_key_head_dim": 8}, "linear_key_head_dim = 8"),
        ({"linear_value_head_dim": 4}, "linear_value_head_dim = 4"),
        ({"linear_conv_kernel_dim": 3}, "linear_conv_kernel_dim = 3"),
        ({"num_attention_heads": 12}, "num_attention_heads = 12"),
    ],
)
def test_config_that_the_tensors_contradict_is_refused(tmp_path, changes, named) -> None:
    write_hybrid(tmp_path)
    path = tmp_path / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
    with refused(named):
        read_model(Checkpoint.open(tmp_path))


def test_missing_tensor_of_a_delta_net_is_named(tmp_path) -> None:
    name = "model.layers.1.linear_attn.in_proj_a.weight"
    write_hybrid(tmp_path, drop=(name,))
    with refused(name, "missing"):
        read_model(Checkpoint.open(tmp_path))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("A_log", ()), ("norm.weight", (2, 4)), ("conv1d.weight", (96, 4)), ("A_log", (0,))],
)
def test_sizes_of_a_delta_net_that_cannot_be_told_are_refused(tmp_path, name, shape) -> None:
    tensor = f"model.layers.0.linear_attn.{name}"
    write_hybrid(tmp_path, replaced={tensor: np.zeros(shape, dtype=np.float32)})
    with refused(tensor, str(list(shape))):
        read_model(Checkpoint.open(tmp_path))


def test_promised_head_without_tensors_is_refused_and_its_absence_noted(tmp_path) -> None:
    plan = plan_of(tmp_path / "a", mtp=False)
    assert plan.spec.mtp is None and any("no MTP head" in note for note in plan.notes)
    head = tuple(name for name in write_hybrid(tmp_path / "x") if name.startswith("mtp."))
    assert len(head) == 15
    write_hybrid(tmp_path / "b", drop=head)
    with refused("mtp_num_hidden_layers = 1", "mtp.pre_fc_norm_embedding.weight"):
        read_model(Checkpoint.open(tmp_path / "b"))
