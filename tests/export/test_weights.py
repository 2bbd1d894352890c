from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from support.checkpoints import write_checkpoint
from support.refusals import refused

from selfdraft.export import weight_sources
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.families import read_model
from selfdraft.export.int4 import dequantize, quantize
from selfdraft.export.weight_plan import (
    WeightsPlan,
    WeightTypes,
    bytes_by_part,
    plan_embedding,
    plan_weights,
)
from selfdraft.export.weights import write_weights

Arrays = dict[str, np.ndarray]


def stored(
    folder: Path,
    *,
    weights: str = "fp32",
    block: int = 32,
    draft_ids: np.ndarray | None = None,
    **options: Any,
) -> tuple[WeightsPlan, Arrays, Arrays]:
    """Plan, stored tensors, and the checkpoint's own tensors, read by the library."""
    source = write_checkpoint(folder / "checkpoint", **options)
    checkpoint = Checkpoint.open(source)
    plan = plan_weights(
        read_model(checkpoint),
        types=WeightTypes(weights=weights, int4_block=block),
        draft_ids=draft_ids,
    )
    write_weights(checkpoint, plan, folder / "weights.safetensors")
    tensors = safetensors.numpy.load_file(folder / "weights.safetensors")
    return plan, tensors, safetensors.numpy.load_file(source / "model.safetensors")


def without_padding(tensors: Arrays) -> Arrays:
    return {name: array for name, array in tensors.items() if not name.startswith("__pad")}


def expected_layer(source: Arrays, prefix: str) -> Arrays:
    """The stored form of one decoder layer, written out by hand."""
    attention = prefix + "self_attn."

    def joined(names: tuple[str, ...], kind: str) -> np.ndarray:
        return np.concatenate([source[f"{prefix}{name}.{kind}"] for name in names])

    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    layer = {
        "input_norm": source[prefix + "input_layernorm.weight"],
        "post_norm": source[prefix + "post_attention_layernorm.weight"],
        "qkv.weight": joined(qkv, "weight").T,
        "o.weight": source[attention + "o_proj.weight"].T,
        "gate_up.weight": joined(("mlp.gate_proj", "mlp.up_proj"), "weight").T,
        "down.weight": source[prefix + "mlp.down_proj.weight"].T,
    }
    if attention + "q_proj.bias" in source:
        layer["qkv.bias"] = joined(qkv, "bias")
    for norm in ("q_norm", "k_norm"):
        if f"{attention}{norm}.weight" in source:
            layer[norm] = source[f"{attention}{norm}.weight"]
    return layer


@pytest.mark.parametrize("family", ["mimo", "qwen2", "qwen3", "llama"])
def test_stored_tensors_are_the_checkpoints_joined_and_transposed(tmp_path, family) -> None:
    _, found, source = stored(tmp_path, family=family, mtp="mimo")
    head = "model.mtp_layers.0."
    expected = {
        "backbone.norm": source["model.norm.weight"],
        "lm_head.weight": source["lm_head.weight"].T,
        "mtp.hidden_norm": source[head + "hidden_layernorm.weight"],
        "mtp.embedding_norm": source[head + "token_layernorm.weight"],
        "mtp.final_norm": source[head + "final_layernorm.weight"],
        "mtp.proj.weight": source[head + "input_proj.weight"].T,
    }
    for target, prefix in {
        "backbone.layers.0.": "model.layers.0.",
        "backbone.layers.1.": "model.layers.1.",
        "mtp.layer.": head,
    }.items():
        layer = expected_layer(source, prefix)
        expected |= {target + name: array for name, array in layer.items()}
    found = without_padding(found)
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("weights", ["fp32", "int4"])
def test_planned_places_are_those_of_the_file_and_aligned(tmp_path, weights) -> None:
    plan, tensors, _ = stored(
        tmp_path, weights=weights, family="qwen3", draft_ids=np.arange(7, dtype=np.int64)
    )
    data = (tmp_path / "weights.safetensors").read_bytes()
    assert len(data) == plan.num_bytes
    assert set(plan.tensors) == set(without_padding(tensors))
    kinds = {"F32": np.float32, "U8": np.uint8, "I64": np.int64}
    for name, place in plan.tensors.items():
        assert place.name == name and place.offset % 64 == 0
        raw = data[place.offset : place.offset + place.length]
        array = np.frombuffer(raw, dtype=kinds[place.dtype]).reshape(place.shape)
        np.testing.assert_array_equal(array, tensors[name])
    for name in set(tensors) - set(plan.tensors):
        assert not tensors[name].any() and tensors[name].size < 64


def test_odd_sizes_are_padded_so_that_the_next_tensor_is_aligned(tmp_path) -> None:
    # head_dim 10 gives norms of 40 bytes, and 3 draft ids 24
    plan, tensors, _ = stored(
        tmp_path, family="qwen3", head_dim=10, draft_ids=np.array([1, 2, 5], dtype=np.int64)
    )
    assert any(name.startswith("__pad") for name in tensors)
    assert all(place.offset % 64 == 0 for place in plan.tensors.values())


@pytest.mark.parametrize("block", [16, 32])
def test_int4_matrices_are_the_quantised_fp32_ones(tmp_path, block) -> None:
    options: dict[str, Any] = {"family": "qwen2", "mtp": "qwen", "seed": 3}
    _, plain, _ = stored(tmp_path / "a", **options)
    plan, packed, _ = stored(tmp_path / "b", weights="int4", block=block, **options)
    assert plan.int4_block == block
    for name, array in without_padding(plain).items():
        if not name.endswith(".weight"):
            np.testing.assert_array_equal(packed[name], array)
            continue
        assert name not in packed
        codes, scale = quantize(array, block)
        np.testing.assert_array_equal(packed[f"{name}.scale"], scale)
        np.testing.assert_array_equal(
            dequantize(packed[f"{name}.int4"], packed[f"{name}.scale"], len(array)),
            codes * np.repeat(scale, block, axis=0),
        )


def test_small_chunks_write_the_same_file(tmp_path, monkeypatch) -> None:
    options: dict[str, Any] = {"family": "mimo", "hidden": 256, "intermediate": 384}
    for weights in ("fp32", "int4"):
        monkeypatch.setattr(weight_sources, "CHUNK_ELEMENTS", 4_000_000)
        stored(tmp_path / f"{weights}a", weights=weights, **options)
        monkeypatch.setattr(weight_sources, "CHUNK_ELEMENTS", 1)
        stored(tmp_path / f"{weights}b", weights=weights, **options)
        files = [tmp_path / f"{weights}{part}" / "weights.safetensors" for part in "ab"]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_half_precision_checkpoints_are_stored_as_their_exact_fp32_values(tmp_path) -> None:
    for dtype in ("F16", "BF16"):
        folder = write_checkpoint(tmp_path / dtype, "llama", dtype=dtype)
        checkpoint = Checkpoint.open(folder)
        plan = plan_weights(read_model(checkpoint), types=WeightTypes(), draft_ids=None)
        write_weights(checkpoint, plan, tmp_path / f"{dtype}.safetensors")
        tensors = safetensors.numpy.load_file(tmp_path / f"{dtype}.safetensors")
        np.testing.assert_array_equal(
            tensors["lm_head.weight"], checkpoint.read("lm_head.weight").T
        )


def test_tied_head_is_not_stored_in_fp32(tmp_path) -> None:
    plan, tensors, _ = stored(tmp_path, family="qwen3", tied=True)
    assert plan.spec.tied_head
    assert not [name for name in tensors if name.startswith("lm_head")]


def test_tied_head_becomes_its_own_int4_matrix(tmp_path) -> None:
    plan, tensors, source = stored(tmp_path, weights="int4", family="qwen3", tied=True)
    assert not plan.spec.tied_head
    assert len(plan.notes) == 1 and "LM head" in plan.notes[0]
    codes, scale = quantize(source["model.embed_tokens.weight"].T.copy(), 32)
    np.testing.assert_array_equal(
        dequantize(tensors["lm_head.weight.int4"], tensors["lm_head.weight.scale"], 64),
        codes * np.repeat(scale, 32, axis=0),
    )


@pytest.mark.parametrize("tied", [False, True])
def test_draft_head_holds_the_chosen_columns_of_the_head(tmp_path, tied) -> None:
    ids = np.array([0, 3, 17, 256, 287], dtype=np.int64)
    plan, tensors, source = stored(tmp_path, family="qwen3", tied=tied, draft_ids=ids)
    head = source["model.embed_tokens.weight" if tied else "lm_head.weight"]
    np.testing.assert_array_equal(tensors["mtp.draft_head.weight"], head[ids].T)
    np.testing.assert_array_equal(tensors["mtp.draft_ids"], ids)
    assert tensors["mtp.draft_ids"].dtype == np.int64
    assert plan.spec.mtp is not None and plan.spec.mtp.draft_vocab_size == 5
    assert plan.spec.tied_head == tied


def test_block_shrinks_until_it_divides_every_matrix(tmp_path) -> None:
    plan, tensors, _ = stored(tmp_path, weights="int4", block=128, family="llama")
    assert plan.int4_block == 32  # hidden 64, FFN 96
    assert any("block is 32" in note for note in plan.notes)
    assert tensors["backbone.layers.0.down.weight.scale"].shape == (3, 64)


def test_matrix_that_no_block_divides_is_refused_by_name(tmp_path) -> None:
    with refused("model.layers.0.mlp.down_proj.weight", "72"):
        stored(tmp_path, weights="int4", family="llama", intermediate=72)


@pytest.mark.parametrize("weights", ["fp32", "int4"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused_with_tensor_and_place(tmp_path, weights, bad) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    array = np.ones((96, 64), dtype=np.float32)
    array[5, 7] = bad
    with refused(name, "[5, 7]"):
        stored(tmp_path, weights=weights, family="mimo", extra={name: array})


def test_value_too_large_for_fp32_is_refused(tmp_path) -> None:
    array = np.full(64, 1e300)
    folder = write_checkpoint(
        tmp_path / "c", "mimo", dtype="F64", extra={"model.norm.weight": array}
    )
    checkpoint = Checkpoint.open(folder)
    plan = plan_weights(read_model(checkpoint), types=WeightTypes(), draft_ids=None)
    with refused("model.norm.weight"):
        write_weights(checkpoint, plan, tmp_path / "w.safetensors")


def test_embedding_file_holds_the_table_alone(tmp_path) -> None:
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path / "c", "mimo"))
    plan = plan_embedding(read_model(checkpoint))
    write_weights(checkpoint, plan, tmp_path / "embedding.safetensors")
    tensors = safetensors.numpy.load_file(tmp_path / "embedding.safetensors")
    assert list(tensors) == ["embedding"]
    np.testing.assert_array_equal(
        tensors["embedding"], checkpoint.read("model.embed_tokens.weight")
    )
    assert plan.tensors["embedding"].offset % 64 == 0


def test_progress_counts_bytes_up_to_the_whole_file(tmp_path) -> None:
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path / "c", "mimo"))
    plan = plan_weights(read_model(checkpoint), types=WeightTypes(weights="int4"), draft_ids=None)
    seen: list[tuple[int, int]] = []
    write_weights(
        checkpoint, plan, tmp_path / "w.safetensors", lambda done, total: seen.append((done, total))
    )
    done = [step[0] for step in seen]
    assert done == sorted(done) and seen[-1] == (plan.num_bytes, plan.num_bytes)


def test_parts_add_up_to_every_stored_byte(tmp_path) -> None:
    plan, tensors, _ = stored(tmp_path, family="qwen3", draft_ids=np.arange(9, dtype=np.int64))
    parts = bytes_by_part([plan])
    assert set(parts) == {"backbone", "lm_head", "mtp", "draft_head"}
    assert sum(parts.values()) == sum(a.nbytes for a in without_padding(tensors).values())
    assert parts["draft_head"] == 9 * 64 * 4 + 9 * 8
