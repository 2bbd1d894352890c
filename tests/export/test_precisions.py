"""Storage of each part: every rung agrees, speculation is exact, and the files are as large as told."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.checkpoints import encode, write_checkpoint
from support.refusals import refused

from selfdraft.bf16 import bf16_from_fp32, fp32_from_bf16
from selfdraft.cli.planned_model import planned_model
from selfdraft.cli.weight_sizes import bytes_by_part
from selfdraft.errors import BundleError
from selfdraft.export.bundle import export_bundle
from selfdraft.export.int8 import quantize_rows
from selfdraft.export.options import ExportOptions
from selfdraft.export.weights_check import compare_weights
from selfdraft.jetson.planner.geometry import geometry_from_spec
from selfdraft.jetson.planner.storage import stored_as, weight_bytes
from selfdraft.manifest import load_manifest
from selfdraft.runtime.embedding import load_table, table_values

EVERY_PART: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"weights": "bf16"},
    "fp16": {"weights": "fp16"},
    "int4 g32": {"weights": "int4", "int4_block": 32},
    "int4 g64": {"weights": "int4", "int4_block": 64},
    "int4 g128": {"weights": "int4", "int4_block": 128},
    "int8 head and embedding": {"weights": "int4", "lm_head": "int8", "embedding": "int8"},
    "wide head": {"weights": "int4", "mtp_weights": "fp32", "lm_head": "bf16"},
    "bf16 head": {"weights": "int4", "mtp_weights": "bf16", "embedding": "bf16"},
    "int8 MTP head": {"weights": "fp16", "mtp_weights": "int8", "embedding": "fp32"},
    "int8 embedding alone": {"embedding": "int8"},
    "fp16 embedding alone": {"embedding": "fp16"},
}
WIDE = {"hidden": 128, "head_dim": 32, "intermediate": 256}
"""Sizes that groups of 128 divide."""


def checkpoint(folder: Path, *, tied: bool = False, **options: Any) -> Path:
    """bf16, as published ones are."""
    sizes: dict[str, Any] = {**WIDE, **options}
    return write_checkpoint(folder, "qwen3", mtp="qwen", tied=tied, dtype="BF16", **sizes)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", EVERY_PART)
def test_told_bytes_are_those_of_the_files(tmp_path, fake_graphs, name, tied) -> None:
    options = ExportOptions(**EVERY_PART[name])
    report = export_bundle(checkpoint(tmp_path / "c", tied=tied), tmp_path / "b", options)
    manifest, held = report.manifest, bytes_by_part(tmp_path / "b", report.manifest)
    assert report.bytes_by_part == held == planned_model(tmp_path / "b").weight_bytes
    geometry = geometry_from_spec(manifest.model, name="x")
    assert weight_bytes(geometry, stored_as(manifest.precision)) == held
    asked, precision = EVERY_PART[name], manifest.precision
    for key, found in (
        ("weights", precision.weights),
        ("mtp_weights", precision.mtp),
        ("lm_head", precision.lm_head),
        ("embedding", precision.embedding),
    ):
        assert found == asked.get(key, found)
    assert compare_weights(tmp_path / "b", tmp_path / "c")[0] == []


def test_halves_take_half_the_file(tmp_path, fake_graphs) -> None:
    source = checkpoint(tmp_path / "c")
    sizes = [
        sum(export_bundle(source, tmp_path / name, options).bytes_by_part.values())
        for name, options in (
            ("fp32", ExportOptions()),
            ("bf16", ExportOptions(weights="bf16")),
        )
    ]
    assert sizes[1] < 0.51 * sizes[0]  # norms stay fp32


def test_tied_head_shares_the_table_unless_it_is_stored_otherwise(tmp_path, fake_graphs) -> None:
    source = checkpoint(tmp_path / "c", tied=True)
    shared = {}
    for name, options in EVERY_PART.items():
        report = export_bundle(source, tmp_path / name, ExportOptions(**options))
        assert report.manifest.model.tied_head == ("lm_head" not in report.bytes_by_part)
        if report.manifest.model.tied_head:
            shared[name] = report.manifest.precision.embedding
    # A table that is multiplied with stays fp32: widening it in every step would cost more.
    assert shared == dict.fromkeys(("fp32", "bf16", "fp16", "int8 MTP head"), "fp32")


@pytest.mark.parametrize(
    ("name", "tied"),
    [
        ("int8 head and embedding", True),
        *(
            pytest.param(name, tied, marks=pytest.mark.slow)
            for name in EVERY_PART
            for tied in (False, True)
        ),
    ],
)
def test_every_rung_agrees_and_speculation_is_exact(tmp_path, name, tied) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    from selfdraft.cli.ladder import verify_bundle

    source = checkpoint(tmp_path / "c", tied=tied, context=96, layers=4, heads=6, kv_heads=2)
    export_bundle(source, tmp_path / "b", ExportOptions(**EVERY_PART[name]))
    report = verify_bundle(tmp_path / "b", checkpoint=source)
    assert report.ok, [check for check in report.checks if not check.passed]
    names = [check.name for check in report.checks]
    assert {"torch against NumPy", "speculative equals plain, match, K = 4"} <= set(names)


def test_bf16_storage_of_a_bf16_checkpoint_changes_no_bit(tmp_path) -> None:
    """On ONNX Runtime, logits and drafts included."""
    pytest.importorskip("torch")
    from selfdraft.cli.ladder_passes import trace_passes
    from selfdraft.runtime.ort import OrtBackend

    source = checkpoint(tmp_path / "c")
    traces = []
    for name in ("fp32", "bf16"):
        export_bundle(source, tmp_path / name, ExportOptions(**EVERY_PART[name]))
        backend: Any = OrtBackend(tmp_path / name, load_manifest(tmp_path / name), threads=1)
        traces.append(trace_passes(backend, list(range(40, 70))))
    assert all(np.array_equal(traces[0][key], traces[1][key]) for key in traces[0])
    assert (
        load_table(tmp_path / "bf16", load_manifest(tmp_path / "bf16"))["embedding"].dtype.itemsize
        == 2
    )


# the types themselves


def test_bf16_rounds_to_the_nearest_and_ties_to_even() -> None:
    values = np.random.default_rng(0).standard_normal(4000).astype(np.float32)
    values[:3] = [1 + 2**-8, 1 + 3 * 2**-8, -0.0]  # halfway: down to even, up to even
    patterns = bf16_from_fp32(values, name="w")
    assert patterns.tobytes() == encode(values, "BF16")[2]
    assert np.array_equal(fp32_from_bf16(patterns)[:2], [1.0, 1 + 2**-6])
    assert np.array_equal(bf16_from_fp32(fp32_from_bf16(patterns), name="w"), patterns)
    with refused("'w'", "beyond bf16"):
        bf16_from_fp32(np.array([3.4e38], dtype=np.float32), name="w")


def test_int8_rows_are_within_half_a_step_of_their_own_scale() -> None:
    rows = np.random.default_rng(1).standard_normal((50, 64)).astype(np.float32)
    rows *= np.logspace(-3, 3, 50, dtype=np.float32)[:, None]
    rows[7] = 0
    codes, scales = quantize_rows(rows)
    assert codes.dtype == np.int8 and scales.shape == (50,)
    error = np.abs(codes * scales[:, None] - rows).max(axis=1)
    assert (error <= 0.5001 * np.abs(rows).max(axis=1) / 127).all()


def test_value_beyond_fp16_is_refused_with_what_holds_it(tmp_path, fake_graphs) -> None:
    large = np.full((288, 64), 1e5, dtype=np.float32)
    source = write_checkpoint(tmp_path / "c", extra={"lm_head.weight": large})
    with refused("lm_head.weight", "fp16 reaches"):
        export_bundle(source, tmp_path / "b", ExportOptions(weights="fp16"))
    export_bundle(source, tmp_path / "b", ExportOptions(weights="bf16"))


@pytest.mark.parametrize("embedding", ["int8", "bf16", "fp32"])
def test_board_takes_no_other_embedding(embedding) -> None:
    with refused(f"'{embedding}'", "target 'orin-jp6'"):
        ExportOptions(target="orin-jp6", embedding=embedding)
    assert ExportOptions(target="orin-jp6", embedding="fp16").types.table(tied=True) == "fp16"


def test_table_that_is_not_what_the_manifest_says_is_refused(tmp_path, fake_graphs) -> None:
    source = checkpoint(tmp_path / "c")
    manifest = export_bundle(source, tmp_path / "b", ExportOptions(embedding="int8")).manifest
    values = table_values(tmp_path / "b", manifest)
    file = tmp_path / "b" / manifest.embedding_file
    held = load_file(file)
    assert np.array_equal(
        values, held["embedding.int8"].astype(np.float32) * held["embedding.scale"][:, None]
    )
    for changed in (
        {"embedding.int8": held["embedding.int8"]},
        held | {"embedding.scale": held["embedding.scale"][:-1]},
        {"embedding": values},
    ):
        save_file(changed, file)
        with refused("embedding.safetensors", "the manifest asks for", error=BundleError):
            load_table(tmp_path / "b", manifest)
    plain = dataclasses.replace(
        manifest, precision=dataclasses.replace(manifest.precision, embedding="fp32")
    )
    assert np.array_equal(table_values(tmp_path / "b", plain), values)


def test_int8_embedding_is_measured_too(tmp_path, fake_graphs) -> None:
    """Its rounding is in the perplexity after, and without a text the export says so."""
    pytest.importorskip("torch")
    source = checkpoint(tmp_path / "c")
    text = tmp_path / "t.txt"
    text.write_text("the quick brown fox jumps over the lazy dog " * 6)
    options = ExportOptions(embedding="int8", calibrate=text)
    measured = export_bundle(source, tmp_path / "a", options).manifest.measured
    assert measured is not None and measured.after is not None
    assert measured.after.perplexity != measured.before.perplexity
    assert measured.after.perplexity == pytest.approx(measured.before.perplexity, rel=0.1)
    unmeasured = export_bundle(source, tmp_path / "b", ExportOptions(embedding="int8"))
    assert any("--calibrate" in note for note in unmeasured.manifest.notes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bf16", "int8 head and embedding", "bf16 head", "int8 MTP head"])
def test_drafts_of_the_early_demo_are_accepted_and_change_no_token(tmp_path, name) -> None:
    """Real drafts, of which some are right and some wrong."""
    pytest.importorskip("torch")
    from selfdraft.cli.ladder import verify_bundle

    demo = Path(__file__).parents[2] / "demo" / "checkpoint-early"
    export_bundle(demo, tmp_path / "b", ExportOptions(**EVERY_PART[name]))
    report = verify_bundle(tmp_path / "b", checkpoint=demo)
    assert report.ok, [check for check in report.checks if not check.passed]
    (check,) = (check for check in report.checks if check.name == "acceptance")
    shares = check.detail.removeprefix("by position ").split(";")[0].split(", ")
    assert 0.3 < float(shares[0]) < 1.0
