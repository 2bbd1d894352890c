"""Measuring on a text: the layer-by-layer run, the tap, scaling by activations, and the verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from support.checkpoints import write_checkpoint
from support.hub_model import HubModel
from support.hybrid import write_hybrid
from support.refusals import refused

pytest.importorskip("torch")

from selfdraft.export.bundle import export_bundle, plan_export
from selfdraft.export.calibrate import calibrate, cost_notes
from selfdraft.export.int4 import quantize
from selfdraft.export.options import ExportOptions
from selfdraft.export.stored_matrix import stored_values
from selfdraft.export.text_scores import Text, acceptance, pass_backbone, read_text, score
from selfdraft.export.tuning_search import ActivationSums, search_tuning
from selfdraft.export.weight_plan import DRAFT_HEAD
from selfdraft.export.weight_reader import CheckpointReader, StoredReader
from selfdraft.export.weights_check import compare_weights
from selfdraft.measured import Measured, Scores


def text_of(*, sequences: int = 2, length: int = 40, seed: int = 3) -> Text:
    ids = np.random.default_rng(seed).integers(0, 256, (sequences, length))
    return Text(name="t.txt", sha256="0" * 64, ids=ids)


def text_file(folder: Path, *, tokens: int = 600) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "text.txt"
    letters = np.random.default_rng(4).integers(97, 123, tokens).astype(np.uint8)
    path.write_bytes(letters.tobytes())
    return path


def by_hand(folder: Path, text: Text) -> tuple[float, float]:
    """Perplexity and acceptance of a checkpoint, by the model that shares nothing."""
    model, losses, agreed = HubModel(folder), [], []
    for ids in text.ids.tolist():
        logits = model.backbone(ids)[2]
        top = logits.max(axis=-1, keepdims=True)
        chances = logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))
        losses += [-chances[p, ids[p + 1]] for p in range(len(ids) - 1)]
        drafts = model.mtp(ids)[1].argmax(axis=-1)
        agreed += [drafts[p] == logits[p + 1].argmax() for p in range(len(ids) - 1)]
    return float(np.exp(np.mean(losses))), float(np.mean(agreed))


@pytest.mark.parametrize(
    ("family", "mtp"), [("mimo", "mimo"), ("qwen3", "qwen"), ("glm4", "deepseek")]
)
@pytest.mark.parametrize("slabs", [2**26, 288 * 7])
def test_scores_are_those_of_the_checkpoint(tmp_path, monkeypatch, family, mtp, slabs) -> None:
    from selfdraft.export import layerwise

    monkeypatch.setattr(layerwise, "MAX_LOGITS", slabs)
    folder = write_checkpoint(tmp_path, family, mtp=mtp, seed=4)
    plan = plan_export(folder, ExportOptions())
    reader = CheckpointReader(plan.checkpoint, plan.model, plan.weights)
    text = text_of()
    found = score(plan.weights.spec, reader, reader, text)
    perplexity, accepted = by_hand(folder, text)
    assert found.perplexity == pytest.approx(perplexity, rel=1e-5)
    assert found.acceptance == pytest.approx(accepted, abs=1e-12)


def test_taps_are_told_apart(tmp_path) -> None:
    plan = plan_export(write_checkpoint(tmp_path, "mimo", seed=4), ExportOptions())
    reader = CheckpointReader(plan.checkpoint, plan.model, plan.weights)
    text = text_of()
    passed = pass_backbone(plan.weights.spec, reader, reader, text)
    swapped = replace(passed.hidden, pre_norm=passed.hidden.post_norm)
    wrong = replace(passed, hidden=swapped)
    shares = [
        acceptance(plan.weights.spec, reader, reader, text, which, tap=tap)
        for which, tap in ((passed, "post_norm"), (wrong, "pre_norm"))
    ]
    assert shares[0] == shares[1]


@pytest.mark.parametrize(
    ("accepted", "tap", "says"),
    [
        ({"pre_norm": 0.4, "post_norm": 0.7}, "post_norm", True),
        ({"pre_norm": 0.7, "post_norm": 0.4}, "pre_norm", False),
        ({"pre_norm": 0.5, "post_norm": 0.5}, "pre_norm", False),
    ],
)
def test_better_tap_is_written_with_its_evidence(
    tmp_path, monkeypatch, fake_graphs, accepted, tap, says
) -> None:
    from selfdraft.export import calibrate as module

    monkeypatch.setattr(module, "acceptance", lambda *args, tap, **rest: accepted[tap])
    folder = write_checkpoint(tmp_path / "c", "mimo")
    options = ExportOptions(calibrate=text_file(tmp_path / "t"))
    manifest = export_bundle(folder, tmp_path / "b", options).manifest
    assert manifest.model.mtp is not None and manifest.measured is not None
    assert manifest.model.mtp.tap == tap
    assert manifest.measured.tap_acceptance == accepted
    assert manifest.measured.before.acceptance == accepted[tap]
    assert manifest.measured.after is None and manifest.measured.tokens == 512
    told = [note for note in manifest.notes if "70.0%" in note and "40.0%" in note]
    assert bool(told) == says
    assert compare_weights(tmp_path / "b", folder)[0] == []


def test_model_without_a_head_has_a_perplexity_alone(tmp_path, fake_graphs) -> None:
    folder = write_checkpoint(tmp_path / "c", "llama", mtp=None, tied=True)
    options = ExportOptions(weights="int4", calibrate=text_file(tmp_path / "t"))
    measured = export_bundle(folder, tmp_path / "b", options).manifest.measured
    assert measured is not None and measured.after is not None
    assert measured.before.acceptance is None and measured.tap_acceptance == {}
    assert measured.after.perplexity != measured.before.perplexity


@pytest.mark.parametrize("weights", ["int4", "int8", "fp32"])
def test_stored_weights_are_read_back_whole_and_in_chunks(tmp_path, fake_graphs, weights) -> None:
    folder = write_checkpoint(tmp_path / "c", "mimo", hidden=512, layers=1)
    options = ExportOptions(weights="int4", lm_head=weights, mtp_weights=weights, draft_vocab=100)
    export_bundle(folder, tmp_path / "b", options)
    plan = plan_export(folder, options)
    path = tmp_path / "b" / "weights.safetensors"
    fallback = CheckpointReader(plan.checkpoint, plan.model, plan.weights)
    reader = StoredReader(path, fallback)
    tensors = safetensors.numpy.load_file(path)
    for name in ("lm_head.weight", DRAFT_HEAD, "mtp.proj.weight", "mtp.final_norm"):
        expected = stored_values(tensors, name)
        np.testing.assert_array_equal(reader.tensor(name), expected)
        if expected.ndim == 2:
            pieces = list(reader.rows(name))
            np.testing.assert_array_equal(np.concatenate([p for _, p in pieces]), expected)
            assert [inputs.stop for inputs, _ in pieces][-1] == len(expected)
    assert list(reader.draft_ids()) == list(tensors["mtp.draft_ids"])


def test_trimmed_draft_head_drafts_its_own_tokens_alone(tmp_path) -> None:
    folder = write_checkpoint(tmp_path, "mimo", seed=4)
    whole = plan_export(folder, ExportOptions())
    trimmed = plan_export(folder, ExportOptions(draft_vocab=20))
    text = text_of()
    shares = []
    for plan in (whole, trimmed):
        reader = CheckpointReader(plan.checkpoint, plan.model, plan.weights)
        found = score(plan.weights.spec, reader, reader, text)
        shares.append((found.perplexity, found.acceptance))
    assert shares[0][0] == shares[1][0]
    ids = trimmed.weights.draft_ids
    assert ids is not None
    model, agreed = HubModel(folder), []
    for row in text.ids.tolist():
        choices = model.backbone(row)[2].argmax(axis=-1)
        drafts = ids[model.mtp(row)[1][:, ids].argmax(axis=-1)]
        agreed += (drafts == choices[1:]).tolist()
    assert shares[1][1] == pytest.approx(np.mean(agreed), abs=1e-12)


# scaling by activations


def test_importance_lets_the_inputs_that_matter_keep_their_precision() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((64, 30)).astype(np.float32)
    importance = np.ones(64, dtype=np.float32)
    importance[::8] = 100.0
    errors = []
    for weights in (None, importance):
        codes, scales = quantize(matrix, 32, importance=weights)
        rest = codes * np.repeat(scales, 32, axis=0) - matrix
        errors.append(float(((rest**2) * importance[:, None]).sum()))
    assert errors[1] < 0.9 * errors[0]
    even = quantize(matrix, 32, importance=np.full(64, 3.0, dtype=np.float32))
    for left, right in zip(even, quantize(matrix, 32), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)


def tuned(folder: Path, **options: Any) -> tuple[Any, Any]:
    """The plan of an activation-aware export and its tuning, with a few inputs made large."""
    settings: dict[str, Any] = {"weights": "int4", "calibrate": text_file(folder / "t")}
    plan = plan_export(folder / "c", ExportOptions(activation_aware=True, **settings, **options))
    text = read_text(settings["calibrate"], plan.text.tokenizer)
    found = calibrate(
        plan.checkpoint,
        plan.model,
        plan.weights,
        text,
        activation_aware=True,
        on_progress=lambda stage, done, total: None,
    )
    return plan, found


def test_scaled_rows_and_their_norm_cancel(tmp_path, fake_graphs) -> None:
    norm = np.ones(64, dtype=np.float32)
    norm[::9] = 12.0  # large activations in a few inputs
    extra = {"model.layers.0.input_layernorm.weight": norm}
    folder = write_checkpoint(tmp_path / "c", "qwen3", mtp="qwen", extra=extra)
    plan, found = tuned(tmp_path)
    factors = found.tuning.row_factors["backbone.layers.0.qkv.weight"]
    assert factors[::9].min() > np.median(factors)  # AWQ: what is large is scaled up
    options = ExportOptions(
        weights="int4", calibrate=tmp_path / "t" / "text.txt", activation_aware=True
    )
    manifest = export_bundle(folder, tmp_path / "b", options).manifest
    assert manifest.measured is not None and manifest.measured.activation_aware
    stored = safetensors.numpy.load_file(tmp_path / "b" / "weights.safetensors")
    name = "backbone.layers.0.qkv.weight"
    product = stored["backbone.layers.0.input_norm"][:, None] * stored_values(stored, name)
    reader = CheckpointReader(plan.checkpoint, plan.model, plan.weights)
    expected = norm[:, None] * reader.tensor(name)
    plain = norm[:, None] * _rounded(reader.tensor(name))
    assert np.square(product - expected).sum() < 0.8 * np.square(plain - expected).sum()
    with refused("text.txt", "activations"):
        compare_weights(tmp_path / "b", folder)


def _rounded(matrix: np.ndarray) -> np.ndarray:
    codes, scales = quantize(matrix, 32)
    return codes * np.repeat(scales, 32, axis=0)


def test_gates_of_a_delta_net_take_the_factors_of_the_projection_beside_them(tmp_path) -> None:
    """The norm feeds both: in floats the layer computes what it did."""
    import torch

    write_hybrid(tmp_path, changes={"hidden_size": 64, "linear_num_value_heads": 4})
    plan = plan_export(tmp_path, ExportOptions(weights="int4"))
    reader = CheckpointReader(plan.checkpoint, plan.model, plan.weights)
    sums = ActivationSums()
    layer = "backbone.layers.1."
    few_large = torch.ones(4, 64)
    few_large[:, ::9] = 30.0
    sums(f"{layer}in_proj.weight", few_large)
    tuning = search_tuning(plan.weights, reader, sums)
    assert set(tuning.row_factors) == {f"{layer}in_proj.weight", f"{layer}gates.weight"}
    norm = reader.tensor(f"{layer}input_norm")
    scaled = tuning.vector(f"{layer}input_norm", norm)
    assert np.abs(scaled / norm - 1).max() > 0.5
    for name in ("in_proj", "gates"):
        matrix = reader.tensor(f"{layer}{name}.weight")
        stored = tuning.rows(f"{layer}{name}.weight", slice(0, 64), matrix)
        np.testing.assert_allclose(scaled[:, None] * stored, norm[:, None] * matrix, rtol=1e-5)


def test_hybrid_is_measured_and_scaled_on_a_text(tmp_path, fake_graphs) -> None:
    write_hybrid(tmp_path / "c", changes={"hidden_size": 64, "linear_num_value_heads": 4})
    _, found = tuned(tmp_path)
    assert all(f"backbone.layers.{i}.in_proj.weight" in found.tuning.mean_squares for i in range(3))
    options = ExportOptions(
        weights="int4", calibrate=tmp_path / "t" / "text.txt", activation_aware=True
    )
    measured = export_bundle(tmp_path / "c", tmp_path / "b", options).manifest.measured
    assert measured is not None and measured.after is not None
    assert measured.before.perplexity == pytest.approx(found.before.perplexity)
    assert measured.after.perplexity == pytest.approx(measured.before.perplexity, rel=0.2)


def test_projection_scales_each_half_by_the_norm_it_comes_from(tmp_path) -> None:
    for naming, order in (("mimo", ("hidden", "embedding")), ("qwen", ("embedding", "hidden"))):
        plan = plan_export(
            write_checkpoint(tmp_path / naming, "llama", mtp=naming), ExportOptions(weights="int4")
        )
        reader = CheckpointReader(plan.checkpoint, plan.model, plan.weights)
        import torch

        sums = ActivationSums()
        sums("mtp.proj.weight", torch.linspace(0.01, 30, 128).expand(4, -1))
        tuning = search_tuning(plan.weights, reader, sums)
        factors = tuning.row_factors["mtp.proj.weight"]
        for half, part in zip(order, np.split(factors, 2), strict=True):
            np.testing.assert_array_equal(tuning.norm_divisors[f"mtp.{half}_norm"], part)


def test_even_activations_scale_nothing(tmp_path) -> None:
    import torch

    plan = plan_export(write_checkpoint(tmp_path, "llama"), ExportOptions(weights="int4"))
    reader = CheckpointReader(plan.checkpoint, plan.model, plan.weights)
    sums = ActivationSums()
    sums("backbone.layers.0.qkv.weight", torch.ones(3, 64))
    assert not search_tuning(plan.weights, reader, sums).row_factors


# the verdict


def measured(**after: float) -> Measured:
    before = Scores(perplexity=10.0, acceptance=0.80)
    return Measured(
        text="t.txt",
        text_sha256="0" * 64,
        tokens=100,
        tap_acceptance={},
        recycle_acceptance={},
        before=before,
        after=replace(before, **after) if after else None,
        activation_aware=False,
    )


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ({}, []),
        ({"perplexity": 10.2, "acceptance": 0.785}, []),
        ({"perplexity": 10.4}, ["perplexity"]),
        ({"acceptance": 0.77}, ["acceptance"]),
        ({"perplexity": float("inf"), "acceptance": 0.0}, ["perplexity", "acceptance"]),
    ],
)
def test_export_speaks_up_when_quantising_hurts(after, words) -> None:
    notes = cost_notes(measured(**after))
    assert len(notes) == len(words)
    for note, word in zip(notes, words, strict=True):
        assert word in note and "t.txt" in note


def test_quantising_without_a_text_says_that_it_was_not_measured(tmp_path, fake_graphs) -> None:
    folder = write_checkpoint(tmp_path / "c")
    plain = export_bundle(folder, tmp_path / "a", ExportOptions()).manifest
    int4 = export_bundle(folder, tmp_path / "b", ExportOptions(weights="int4")).manifest
    assert not any("--calibrate" in note for note in plain.notes)
    assert any("--calibrate" in note for note in int4.notes)
    head = export_bundle(folder, tmp_path / "d", ExportOptions(lm_head="int8")).manifest
    assert any("--calibrate" in note for note in head.notes)
    assert (plain.precision.quantised, head.precision.quantised) == (False, True)


def test_text_that_is_too_short_or_no_text_is_refused(tmp_path, fake_graphs) -> None:
    folder = write_checkpoint(tmp_path / "c")
    short = text_file(tmp_path / "t", tokens=31)
    with refused("text.txt", "31 tokens"):
        export_bundle(folder, tmp_path / "b", ExportOptions(calibrate=short))
    short.write_bytes(b"\xff\xfe" * 40)
    with refused("text.txt", "UTF-8"):
        export_bundle(folder, tmp_path / "b", ExportOptions(calibrate=short))
    with refused("activation_aware", "calibration text"):
        ExportOptions(weights="int4", activation_aware=True)
    with refused("activation_aware"):
        ExportOptions(calibrate=short, activation_aware=True)


@pytest.mark.slow
def test_int4_of_the_demo_in_blocks_of_64_keeps_acceptance_and_perplexity(
    tmp_path, fake_graphs
) -> None:
    """The demo's own calibration text: at most 2 points and 3 %."""
    demo = Path(__file__).parents[2] / "demo"
    options = ExportOptions(weights="int4", int4_block=64, calibrate=demo / "calibration.txt")
    manifest = export_bundle(demo / "checkpoint", tmp_path / "b", options).manifest
    measured = manifest.measured
    assert measured is not None and measured.after is not None and measured.tokens == 4096
    assert measured.before.acceptance is not None and measured.after.acceptance is not None
    assert 0.5 < measured.before.acceptance < 1
    assert measured.after.acceptance >= measured.before.acceptance - 0.02
    assert measured.after.perplexity <= 1.03 * measured.before.perplexity
    assert not any("quantising" in note for note in manifest.notes)
