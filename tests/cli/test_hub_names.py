"""A name of the hub works wherever a checkpoint's folder does."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import write_checkpoint
from support.fake_hub import COMMIT

NAME = "some-org/tiny"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """A hub library that has one snapshot; what it was asked for."""
    folder = tmp_path / "hub" / "models--some-org--tiny" / "snapshots" / COMMIT
    write_checkpoint(folder, "qwen3", mtp="qwen", layers=1)
    calls: list[tuple[str, str | None]] = []

    def snapshot_download(name: str, *, revision: str | None, **options: Any) -> str:
        calls.append((name, revision))
        return str(folder)

    library = types.ModuleType("huggingface_hub")
    library.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    monkeypatch.chdir(tmp_path)
    return calls


@pytest.mark.parametrize("command", ["inspect", "plan", "advise"])
def test_commands_that_only_read_take_a_name(run: Any, asked: list[Any], command: str) -> None:
    done = run(command, f"{NAME}@v1.0", "--json")
    assert done.exit_code == 0, done.stderr
    assert asked == [(NAME, "v1.0")] and NAME in done.stdout
    assert json.loads(done.stdout)


def test_export_and_verify_take_a_name_and_the_commit_is_recorded(
    run: Any, asked: list[Any], tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="the exporter: pip install 'selfdraft[export]'")
    pytest.importorskip("onnxruntime", reason="the engine: pip install 'selfdraft[cpu]'")
    done = run("export", NAME, "-o", tmp_path / "b", "--context", 96)
    assert done.exit_code == 0, done.stderr
    source = json.loads((tmp_path / "b" / "manifest.json").read_text())["source"]
    assert (source["name"], source["revision"]) == (NAME, COMMIT)
    given = ("--checkpoint", f"{NAME}@{COMMIT}", "--prompt", "hi")
    checked = run("verify", tmp_path / "b", *given, "--json")
    assert checked.exit_code == 0, checked.stdout
    names = [check["name"] for check in json.loads(checked.stdout)["checks"]]
    assert "weights against the checkpoint" in names
    assert asked == [(NAME, None), (NAME, COMMIT)]


def test_align_and_demo_take_a_name(run: Any, asked: list[Any], tmp_path: Path) -> None:
    """As far as their own checks of what they were given."""
    (tmp_path / "t.txt").write_text("too short")
    done = run("align", NAME, "--text", tmp_path / "t.txt", "-o", tmp_path / "d")
    assert done.exit_code == 2 and "tokens" in done.stderr
    from selfdraft.cli.demo_bundle import find_checkpoint

    assert find_checkpoint(Path(NAME)).name == COMMIT
    assert asked == [(NAME, None), (NAME, None)]


def test_probe_takes_a_name(
    run: Any, asked: list[Any], shared_bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "t.txt").write_text("what is it " * 40)
    done = run("probe", shared_bundle, "--text", tmp_path / "t.txt", "--checkpoint", NAME)
    assert asked == [(NAME, None)]
    assert done.exit_code == 2 and COMMIT in done.stderr  # another model than the bundle's
