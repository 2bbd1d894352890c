"""AWQ, GPTQ and compressed-tensors: published packings come back bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from support.checkpoints import checkpoint_config, random_tensors, write_checkpoint
from support.packings import CONFIGS, pack_checkpoint, sample
from support.refusals import refused

from selfdraft.export.bundle import export_bundle
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.config import ConfigKeys
from selfdraft.export.families import read_model
from selfdraft.export.options import ExportOptions
from selfdraft.export.packed import read_packing
from selfdraft.runtime.backend import Step
from selfdraft.runtime.reference import ReferenceBackend

METHODS = ("awq", "gptq", "compressed-tensors")
SIZES: dict[str, Any] = {
    "vocab": 288,
    "hidden": 64,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "intermediate": 96,
    "context": 512,
}
MODULE = "model.layers.0.mlp.up_proj"


def packed_folder(
    folder: Path,
    method: str,
    *,
    config: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    extra: dict[str, Any] | None = None,
    **packing: Any,
) -> tuple[Path, dict[str, Any]]:
    """A Llama checkpoint with packed linears, and its values in float."""
    settings = checkpoint_config("llama", mtp="mimo", tied=False, **SIZES)
    tensors = random_tensors(settings, "llama", mtp="mimo", seed=2)
    packed, plain = pack_checkpoint(tensors, method, **packing)
    names = tuple(name for name in tensors if name not in packed)
    for name in drop:
        packed.pop(name)
    write_checkpoint(
        folder,
        "llama",
        drop=names,
        extra=packed | (extra or {}),
        dtype="F16" if method != "compressed-tensors" else "BF16",
        config={"quantization_config": CONFIGS[method]} | (config or {}),
    )
    return folder, plain


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("symmetric", [False, True])
def test_published_packing_dequantises_exactly(tmp_path, method, symmetric) -> None:
    folder, _ = packed_folder(tmp_path, method, symmetric=symmetric)
    made = sample(method, 96, 64, seed=77, symmetric=symmetric)
    parts = {f"{MODULE}.{part}": array for part, array in made.tensors.items()}
    folder, _ = packed_folder(tmp_path / "b", method, symmetric=symmetric, extra=parts)
    found = Checkpoint.open(folder).read(f"{MODULE}.weight")
    expected = made.values
    if method == "compressed-tensors":  # its scales are written in bf16 here
        expected = _with_bf16_scales(made)
    np.testing.assert_array_equal(found, expected)


def _with_bf16_scales(made: Any) -> np.ndarray:
    bits = made.tensors["weight_scale"].astype(np.float32).view(np.uint32)
    rounded = (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).view(np.float32)
    codes = made.values / np.repeat(made.tensors["weight_scale"].astype(np.float32), 32, axis=1)
    return np.rint(codes).astype(np.float32) * np.repeat(rounded, 32, axis=1)


@pytest.mark.parametrize("method", ["gptq", "compressed-tensors"])
def test_act_order_dequantises_exactly(tmp_path, method) -> None:
    made = sample(method, 96, 64, seed=5, symmetric=True, act_order=3)
    parts = {f"{MODULE}.{part}": array for part, array in made.tensors.items()}
    folder, _ = packed_folder(tmp_path, method, symmetric=True, extra=parts)
    expected = made.values if method == "gptq" else None
    found = Checkpoint.open(folder).read(f"{MODULE}.weight")
    if expected is None:
        np.testing.assert_allclose(found, made.values, rtol=2**-8)
    else:
        np.testing.assert_array_equal(found, expected)


def test_second_gptq_format_has_its_zero_points_as_they_are(tmp_path) -> None:
    made = sample("gptq", 96, 64, seed=6, plus_one=False)
    parts = {f"{MODULE}.{part}": array for part, array in made.tensors.items()}
    config = CONFIGS["gptq"] | {"checkpoint_format": "gptq_v2"}
    folder, _ = packed_folder(tmp_path, "gptq", extra=parts, config={"quantization_config": config})
    np.testing.assert_array_equal(Checkpoint.open(folder).read(f"{MODULE}.weight"), made.values)


def logits_of(bundle: Path) -> np.ndarray:
    backend = ReferenceBackend.from_bundle(bundle)
    ids = np.random.default_rng(1).integers(0, 256, (1, 24))
    one = np.ones(1, dtype=np.int64)
    step = Step(past_len=one * 0, row_count=one * 24, attend_all=one, row_index=np.arange(24)[None])
    states = backend.allocate(batch=1, capacity=128)
    out = backend.run_backbone(states, step, ids)
    drafts = backend.run_mtp(states, step, np.roll(ids, -1, axis=1), out.hidden)
    return np.concatenate([np.asarray(out.logits)[0], np.asarray(drafts.top_values)[0]], axis=-1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("act_order", [False, True])
def test_bundle_keeps_the_codes_and_computes_what_the_floats_compute(
    tmp_path, fake_graphs, method, act_order
) -> None:
    if method == "awq" and act_order:
        pytest.skip("AWQ has no act-order")
    folder, _ = packed_folder(tmp_path / "c", method, act_order=act_order)
    report = export_bundle(folder, tmp_path / "b", ExportOptions())
    assert report.manifest.precision.weights == "int4"
    assert (report.manifest.precision.lm_head, report.manifest.precision.mtp) == ("fp32", "fp32")
    stored = safetensors.numpy.load_file(tmp_path / "b" / "weights.safetensors")
    kinds = {name.rpartition(".")[2] for name in stored if "layers.0.qkv" in name}
    assert kinds == {"int4", "scale", "zero"} | ({"order"} if act_order else set())
    unpacked = export_bundle(folder, tmp_path / "f", ExportOptions(weights="fp32"))
    assert unpacked.manifest.precision.weights == "fp32"
    np.testing.assert_allclose(logits_of(tmp_path / "b"), logits_of(tmp_path / "f"), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_graphs_over_packed_weights_equal_the_reference(tmp_path, method) -> None:
    pytest.importorskip("onnxruntime")
    from selfdraft.runtime.ort import OrtBackend

    folder, _ = packed_folder(tmp_path / "c", method, act_order=method != "awq")
    options = ExportOptions(lm_head="int8", mtp_weights="int8")
    report = export_bundle(folder, tmp_path / "b", options)
    assert (report.manifest.precision.lm_head, report.manifest.precision.mtp) == ("int8", "int8")
    backend = OrtBackend(tmp_path / "b", report.manifest)
    ids = np.random.default_rng(1).integers(0, 256, (1, 24))
    one = np.ones(1, dtype=np.int64)
    step = Step(past_len=one * 0, row_count=one * 24, attend_all=one, row_index=np.arange(24)[None])
    states = backend.allocate(batch=1, capacity=128)
    logits = backend.run_backbone(states, step, ids).logits.array[0]
    expected = logits_of(tmp_path / "b")[:, :288]
    # int8 activations inside int4 matmuls: about a percent of the largest value.
    assert np.abs(logits - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("method", "part"),
    [("awq", "scales"), ("awq", "qzeros"), ("gptq", "scales"), ("gptq", "qzeros")]
    + [("compressed-tensors", "weight_scale")],
)
def test_packed_linear_without_a_part_is_refused_by_name(tmp_path, method, part) -> None:
    name = f"{MODULE}.{part}"
    with refused(repr(name), "missing", "4 bits"):
        Checkpoint.open(packed_folder(tmp_path, method, drop=(name,))[0])


@pytest.mark.parametrize("method", METHODS)
def test_packed_mtp_head_without_its_scales_is_refused(tmp_path, method) -> None:
    scales = "weight_scale" if method == "compressed-tensors" else "scales"
    name = f"model.mtp_layers.0.input_proj.{scales}"
    with refused(repr(name), "missing"):
        kept = ("lm_head", "embed_tokens", "norm")
        Checkpoint.open(packed_folder(tmp_path, method, drop=(name,), kept=kept)[0])


def test_packed_head_is_read_like_any_linear(tmp_path, fake_graphs) -> None:
    folder, plain = packed_folder(tmp_path / "c", "gptq", kept=("embed_tokens", "norm"))
    report = export_bundle(folder, tmp_path / "b", ExportOptions())
    precision = report.manifest.precision
    assert (precision.weights, precision.lm_head, precision.mtp) == ("int4", "int4", "int4")
    np.testing.assert_array_equal(
        Checkpoint.open(folder).read("lm_head.weight"), plain["lm_head.weight"]
    )


def test_parts_that_do_not_share_an_order_are_unpacked_exactly(tmp_path, fake_graphs) -> None:
    made = sample("gptq", 32, 64, seed=9, act_order=123)
    name = "model.layers.0.self_attn.k_proj"
    parts = {f"{name}.{part}": array for part, array in made.tensors.items()}
    folder, plain = packed_folder(tmp_path / "c", "gptq", extra=parts)
    report = export_bundle(folder, tmp_path / "b", ExportOptions())
    assert any("backbone.layers.0.qkv.weight" in note for note in report.manifest.notes)
    stored = safetensors.numpy.load_file(tmp_path / "b" / "weights.safetensors")
    joined = [plain["model.layers.0.self_attn.q_proj.weight"], made.values]
    joined.append(plain["model.layers.0.self_attn.v_proj.weight"])
    np.testing.assert_array_equal(stored["backbone.layers.0.qkv.weight"], np.concatenate(joined).T)


def test_zero_points_that_the_config_denies_are_refused(tmp_path, fake_graphs) -> None:
    config = {"quantization_config": CONFIGS["gptq"] | {"sym": True}}
    folder, _ = packed_folder(tmp_path / "c", "gptq", config=config)
    with refused("qzeros", "sym = true"):
        export_bundle(folder, tmp_path / "b", ExportOptions())


def test_symmetric_codes_are_stored_without_zero_points(tmp_path, fake_graphs) -> None:
    config = {"quantization_config": CONFIGS["gptq"] | {"sym": True}}
    folder, _ = packed_folder(tmp_path / "c", "gptq", config=config, symmetric=True)
    export_bundle(folder, tmp_path / "b", ExportOptions())
    stored = safetensors.numpy.load_file(tmp_path / "b" / "weights.safetensors")
    assert not [name for name in stored if name.endswith(".zero")]


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
        ({"bits": 4}, "unknown"),
        (CONFIGS["awq"] | {"bits": 8}, "bits = 8"),
        (CONFIGS["awq"] | {"version": "gemv"}, "gemv"),
        (CONFIGS["gptq"] | {"bits": 3}, "bits = 3"),
        (CONFIGS["gptq"] | {"checkpoint_format": "marlin"}, "marlin"),
        (CONFIGS["compressed-tensors"] | {"format": "float-quantized"}, "float-quantized"),
    ],
)
def test_packing_that_is_not_known_is_refused_by_name(section, named) -> None:
    with refused(named, "not supported"):
        read_packing(ConfigKeys({"quantization_config": section}))


def test_shapes_that_do_not_fit_each_other_are_refused(tmp_path) -> None:
    extra = {f"{MODULE}.scales": np.ones((3, 96), dtype=np.float32)}
    with refused("do not fit", "up_proj.scales"):
        Checkpoint.open(packed_folder(tmp_path, "awq", extra=extra)[0])


def test_packed_and_unpacked_at_once_is_refused(tmp_path) -> None:
    extra = {f"{MODULE}.weight": np.ones((96, 64), dtype=np.float32)}
    with refused(f"{MODULE}.weight", "packed and unpacked"):
        Checkpoint.open(packed_folder(tmp_path, "awq", extra=extra)[0])


def test_geometry_comes_from_packed_shapes(tmp_path) -> None:
    spec = read_model(Checkpoint.open(packed_folder(tmp_path, "awq")[0])).spec
    assert (spec.intermediate_size, spec.num_heads, spec.num_kv_heads) == (96, 4, 2)
