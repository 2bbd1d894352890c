"""``selfdraft probe`` on small bundles: what is measured is right, and what is said follows."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import write_checkpoint
from support.hub_model import HubModel

pytest.importorskip("torch", reason="the exporter: pip install 'selfdraft[export]'")
pytest.importorskip("onnxruntime", reason="the engine: pip install 'selfdraft[cpu]'")

from selfdraft.cli import baseline as baseline_module
from selfdraft.cli.probe_engine import TextEngine
from selfdraft.cli.probe_texts import baseline_text, replies_text
from selfdraft.cli.session import EngineOptions, open_session
from selfdraft.manifest import load_manifest, manifest_to_json


def letters(path: Path, count: int, seed: int) -> Path:
    drawn = np.random.default_rng(seed).integers(97, 123, count)
    path.write_bytes(drawn.astype(np.uint8).tobytes())
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint ``c``, its bundle ``b`` with a baseline, and a text; not to be changed."""
    from typer.testing import CliRunner

    from selfdraft.cli.main import app

    place = tmp_path_factory.mktemp("probe")
    checkpoint = write_checkpoint(place / "c", "mimo", context=4096)
    text = letters(place / "text.txt", 600, seed=0)
    letters(place / "own.txt", 700, seed=1)
    few = pytest.MonkeyPatch()
    few.setattr(baseline_module, "PLACES", 2)
    arguments = ["export", checkpoint, "-o", place / "b", "--calibrate", text]
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    few.undo()
    assert done.exit_code == 0, done.stderr
    return place


def probe(run: Any, *arguments: object) -> dict[str, Any]:
    done = run("probe", *arguments, "--backend", "ort", "--threads", 1, "--json")
    assert done.exit_code == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def test_graphs_are_measured_as_a_model_that_shares_nothing_says(folder: Path) -> None:
    session = open_session(folder / "b", EngineOptions(threads=1, chunk=48))
    ids = np.random.default_rng(3).integers(0, 256, (2, 100))
    rows = TextEngine(session).rows(ids, dense=True)
    model = HubModel(folder / "c")
    for n, sequence in enumerate(ids.tolist()):
        choices = model.backbone(sequence)[2].argmax(axis=-1)
        drafts = model.mtp(sequence)[1].argmax(axis=-1)
        np.testing.assert_array_equal(rows.choices[n], choices[1:])
        np.testing.assert_array_equal(rows.drafts[n], drafts[: len(sequence) - 1])


def test_everything_is_measured_and_a_healthy_bundle_is_left_alone(folder: Path, run: Any) -> None:
    record = probe(run, folder / "b", "--text", folder / "own.txt", "--checkpoint", folder / "c")
    shares = {(m["text"], m["setting"]): m["share"]["value"] for m in record["measurements"]}
    settings = [setting for text, setting in shares if text == "baseline text"]
    assert settings[0] == "as deployed" and len(settings) == 9
    deployed = shares["baseline text", "as deployed"]
    assert deployed == pytest.approx(shares["baseline text", settings[1]], abs=0.01)
    assert deployed == pytest.approx(record["expected"], abs=0.01)
    assert record["expected"] == record["measured_at_export"]["before"]["acceptance"]
    assert record["verdict"]["causes"] == []
    told = " ".join(record["untold"])
    assert "too short to look at positions" in told and "--checkpoint" not in told


def test_bundle_without_its_baseline_needs_a_text(folder: Path, run: Any, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder / "b", tmp_path / "b"))
    manifest = load_manifest(copy)
    files = {name: spec for name, spec in manifest.files.items() if name != "calibration.json"}
    bare = dataclasses.replace(manifest, files=files, baseline=None, measured=None)
    (copy / "manifest.json").write_text(manifest_to_json(bare))
    (copy / "calibration.json").unlink()
    refused = run("probe", copy, "--backend", "ort")
    assert refused.exit_code == 2 and "--text" in refused.stderr
    record = probe(run, copy, "--text", folder / "own.txt")
    assert record["expected"] is None
    assert any("--expected" in text for text in record["untold"])
    doubtful = probe(run, copy, "--text", folder / "own.txt", "--expected", 0.9)
    assert doubtful["verdict"]["causes"] == ["fine_tuning"]
    assert "align" in doubtful["verdict"]["advice"][0]


def test_only_replies_count_of_prompts(folder: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("hello\n\nsecond\n")
    session = open_session(folder / "b", EngineOptions(threads=1))
    text = replies_text(session, prompts, tokens=4096)
    assert text.counted is not None and text.counted.shape == (len(text.ids), text.ids.shape[1] - 1)
    assert 0 < text.counted.sum() < text.counted.size
    own = baseline_text(session, "default", tokens=4096)
    assert own is not None and own.counted is None and own.ids.shape == (2, 256)


def test_text_tables_and_report_say_the_same(folder: Path, run: Any, tmp_path: Path) -> None:
    page = tmp_path / "probe.html"
    arguments = ("probe", folder / "b", "--backend", "ort", "--html", page)
    done = run(*arguments)
    assert done.exit_code == 0, done.stderr
    assert "verdict: nothing explains a drop" in done.stdout
    assert "not told: only one text" in done.stdout
    written = page.read_text()
    start = written.index('id="record">') + len('id="record">')
    record = json.loads(written[start : written.index("</script>")])
    assert record["verdict"]["causes"] == []
    assert f"{record['measurements'][0]['share']['value']:.1%}" in done.stdout


def test_report_that_cannot_be_written_loses_no_figure(
    folder: Path, run: Any, tmp_path: Path
) -> None:
    taken = tmp_path / "taken.html"
    taken.mkdir()
    done = run("probe", folder / "b", "--backend", "ort", "--html", taken)
    assert done.exit_code == 4 and "cannot be written" in done.stderr
    assert "verdict: nothing explains a drop" in done.stdout


def test_what_cannot_be_probed_is_refused(folder: Path, run: Any, tmp_path: Path) -> None:
    bundle = folder / "b"
    both = run("probe", bundle, "--text", folder / "own.txt", "--prompts", folder / "own.txt")
    assert both.exit_code == 2 and "choose one" in both.stderr
    assert run("probe", bundle, "--html", tmp_path / "no" / "x.html").exit_code == 2
    assert run("probe", bundle, "--html", tmp_path / "x.pdf").exit_code == 2
    missing = run("probe", bundle, "--checkpoint", tmp_path / "none", "--backend", "ort")
    assert missing.exit_code == 2 and "is not a checkpoint" in missing.stderr
    assert "as deployed" not in missing.stderr, "told before anything is measured"
    task = run("probe", bundle, "--task", "poems", "--backend", "ort")
    assert task.exit_code == 2 and "it has: default" in task.stderr
