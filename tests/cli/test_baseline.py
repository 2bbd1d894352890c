"""The baseline that an export measures: counts, texts, and a bundle that stays whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import write_checkpoint

pytest.importorskip("torch", reason="the exporter: pip install 'selfdraft[export]'")
pytest.importorskip("onnxruntime", reason="the engine: pip install 'selfdraft[cpu]'")

from selfdraft.baseline import sum_counts
from selfdraft.cli import baseline as module
from selfdraft.cli.baseline import CALIBRATION_FILE, add_baseline, stored_texts
from selfdraft.cli.eval_acceptance import acceptance_by_position
from selfdraft.cli.session import EngineOptions, open_session
from selfdraft.errors import BundleError
from selfdraft.runtime.bundle import open_bundle


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two texts of letters."""
    folder = tmp_path_factory.mktemp("texts")
    files = {}
    for seed, name in enumerate(("default", "code")):
        letters = np.random.default_rng(seed).integers(97, 123, 300 + 100 * seed)
        files[name] = folder / f"{name}.txt"
        files[name].write_bytes(letters.astype(np.uint8).tobytes())
    return files


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, texts: dict[str, Path]) -> Path:
    """Exported by the command with both texts; not to be changed."""
    from typer.testing import CliRunner

    from selfdraft.cli.main import app

    folder = tmp_path_factory.mktemp("baseline")
    checkpoint = write_checkpoint(folder / "c", "mimo", context=256)
    places = pytest.MonkeyPatch()
    places.setattr(module, "PLACES", 4)
    places.setattr(module, "FIRST_BUCKET", 64)
    arguments = ["export", checkpoint, "-o", folder / "b", "--calibrate", texts["default"]]
    arguments += ["--task", f"code={texts['code']}", "--json"]
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    places.undo()
    assert done.exit_code == 0, done.stderr
    shown = json.loads(done.stdout)["baseline"]
    assert [task["task"] for task in shown["tasks"]] == ["default", "code"]
    return folder / "b"


def test_counts_are_those_of_the_decode_loop(bundle: Path, texts: dict[str, Path]) -> None:
    baseline = open_bundle(bundle).manifest.baseline
    assert baseline is not None and baseline.method == "decoded"
    session = open_session(bundle, EngineOptions(drafts=module.DRAFTS))
    for task in baseline.tasks:
        ids = session.tokenizer.encode(texts[task.task].read_text(), add_special_tokens=False)
        ids = ids[: 256 - module.REPLY_TOKENS]
        buckets = acceptance_by_position(
            session, ids, bucket=64, trials=4, tokens=32, on_progress=lambda *_: None
        )
        assert len(buckets) == 4
        assert task.counts.drafted == tuple(np.sum([b.drafted for b in buckets], axis=0))
        assert task.counts.accepted == tuple(np.sum([b.accepted for b in buckets], axis=0))
        assert sum_counts(part.counts for part in task.buckets) == task.counts


def test_texts_are_kept_for_the_probe(bundle: Path) -> None:
    opened = open_bundle(bundle)
    found = stored_texts(opened)
    assert [(text.task, len(text.ids)) for text in found] == [("default", 224), ("code", 224)]
    assert (bundle / CALIBRATION_FILE).stat().st_size < 10_000
    assert opened.manifest.baseline is not None
    assert opened.manifest.baseline.tokens == 448


def test_bundle_without_texts_has_none(shared_bundle: Path) -> None:
    assert stored_texts(open_bundle(shared_bundle)) == []


def test_damaged_texts_are_told(bundle: Path, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(bundle, tmp_path / "b"))
    (copy / CALIBRATION_FILE).write_text("{}")
    opened = open_bundle(bundle)
    object.__setattr__(opened, "path", copy)
    with pytest.raises(BundleError, match="calibration.json"):
        stored_texts(opened)


@pytest.mark.parametrize("given", ["code", "code=", "=x", "code=missing.txt"])
def test_task_without_a_file_is_refused(tmp_path: Path, run: Any, given: str) -> None:
    checkpoint = write_checkpoint(tmp_path / "c", "mimo")
    done = run("export", checkpoint, "-o", tmp_path / "b", "--task", given)
    assert done.exit_code == 2 and "--task" in done.stderr
    assert not (tmp_path / "b").exists()


def test_short_text_leaves_the_bundle_as_it_was(bundle: Path, tmp_path: Path) -> None:
    from selfdraft.errors import ConfigError

    short = tmp_path / "short.txt"
    short.write_text("few tokens")
    before = (bundle / "manifest.json").read_bytes()
    with pytest.raises(ConfigError, match="needs 64"):
        add_baseline(bundle, {"default": short}, tokens=4096, on_progress=lambda *_: None)
    assert (bundle / "manifest.json").read_bytes() == before
