"""``selfdraft align`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import write_checkpoint

pytest.importorskip("torch", reason="training: pip install 'selfdraft[export]'")

OPTIONS = ("--steps", 4, "--length", 32, "--batch", 64, "--device", "cpu")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes((np.arange(600) * 7 % 26 + 97).astype(np.uint8).tobytes())
    return path


def test_aligned_checkpoint_can_be_exported(tmp_path, text, run) -> None:
    folder = write_checkpoint(tmp_path / "c", "qwen3", mtp=None)
    done = run("align", folder, "--text", text, "--text", text, "-o", tmp_path / "d", *OPTIONS)
    assert done.exit_code == 0, done.stderr
    assert "a new head, done" in done.stdout and "acceptance after" in done.stdout
    assert "step 4: " in done.stderr
    planned = run("export", tmp_path / "d", "-o", tmp_path / "b", "--dry-run", "--json")
    assert json.loads(planned.stdout)["has_mtp"] is True


def test_json_says_what_the_record_says(tmp_path, text, run) -> None:
    folder = write_checkpoint(tmp_path / "c", "mimo")
    arguments = ("align", folder, "--text", text, "-o", tmp_path / "d", *OPTIONS)
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    shown = json.loads(done.stdout)
    written = json.loads((tmp_path / "d" / "align.json").read_text())
    assert {key: written[key] for key in shown} == shown
    again = run(*arguments)
    assert again.exit_code == 2 and "--overwrite" in again.stderr
    assert run(*arguments, "--overwrite").exit_code == 0


def test_ctrl_c_writes_the_best_so_far(tmp_path, text, run, monkeypatch) -> None:
    import signal

    from selfdraft.export.align.training import HeadTrainer

    plain = HeadTrainer.step

    def interrupted(self: HeadTrainer, index: int) -> float:
        if index == 1:
            signal.raise_signal(signal.SIGINT)
        return plain(self, index)

    monkeypatch.setattr(HeadTrainer, "step", interrupted)
    folder = write_checkpoint(tmp_path / "c", "mimo")
    done = run("align", folder, "--text", text, "-o", tmp_path / "d", *OPTIONS)
    assert done.exit_code == 130
    assert "interrupted" in done.stdout
    assert json.loads((tmp_path / "d" / "align.json").read_text())["steps"] == 2
