"""Names of the hub instead of a folder, against a hub on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import write_checkpoint
from support.fake_hub import COMMIT, Hub, serve
from support.refusals import refused

from selfdraft.errors import DeviceError
from selfdraft.export.checkpoint import Checkpoint
from selfdraft.export.families import read_model
from selfdraft.export.hub import local_checkpoint, snapshot_commit
from selfdraft.export.source import read_source

NAME = "some-org/Tiny-Model"


def inspect(hub: Hub, home: Path, name: str) -> subprocess.CompletedProcess[str]:
    """``selfdraft inspect`` in a process of its own: the library reads its settings once."""
    settings = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NO_PROXY": "127.0.0.1",
    }
    return subprocess.run(
        [sys.executable, "-m", "selfdraft.cli.main", "inspect", name, "--json"],
        check=False,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed (hub)")
    folder = write_checkpoint(tmp_path / "repository", "qwen3", mtp="qwen")
    (folder / "modeling_evil.py").write_text("raise SystemExit")
    (folder / "pytorch_model.bin").write_bytes(b"\x80")
    return folder


def test_name_is_fetched_once_and_its_commit_told(tmp_path, repository) -> None:
    with serve(repository, NAME) as hub:
        for _ in range(2):
            done = inspect(hub, tmp_path / "home", NAME)
            assert done.returncode == 0, done.stderr
            facts = json.loads(done.stdout)
            assert (facts["name"], facts["revision"]) == (NAME, COMMIT)
            assert facts["mtp"]["found"] is True
    assert hub.fetched.count("model.safetensors") == 1
    assert not {"modeling_evil.py", "pytorch_model.bin"} & set(hub.fetched)


def test_transfer_that_was_cut_short_goes_on_where_it_stopped(tmp_path, repository) -> None:
    # The library writes 10 MB at a time: less than that is asked for again.
    write_checkpoint(repository, "qwen3", mtp="qwen", vocab=60_000, layers=1)
    with serve(repository, NAME, cut="model.safetensors") as hub:
        done = inspect(hub, tmp_path / "home", NAME)
        if done.returncode != 0:  # the library gave up: the next call resumes
            done = inspect(hub, tmp_path / "home", NAME)
    assert done.returncode == 0, done.stderr
    starts = [int(asked.removeprefix("bytes=").split("-")[0]) for asked in hub.ranges]
    assert max(starts, default=0) >= 10 * 2**20
    snapshot = Path(json.loads(done.stdout)["checkpoint"])
    whole = (repository / "model.safetensors").read_bytes()
    assert (snapshot / "model.safetensors").read_bytes() == whole


def test_unknown_revision_is_refused_with_its_name(tmp_path, repository) -> None:
    with serve(repository, NAME) as hub:
        done = inspect(hub, tmp_path / "home", f"{NAME}@v9")
    assert done.returncode == 2
    assert f"{NAME} at v9 cannot be fetched" in done.stderr and "Traceback" not in done.stderr


def test_folder_wins_over_a_name(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert local_checkpoint(Path("org/name")) == Path("org/name")
    assert local_checkpoint(Path("/org/name")) == Path("/org/name")  # no name has a root
    assert local_checkpoint(Path("name")) == Path("name")


def test_missing_library_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with refused("org/name", "huggingface_hub", error=DeviceError):
        local_checkpoint(Path("org/name"))


def test_revision_and_name_are_handed_on(monkeypatch) -> None:
    asked: dict[str, Any] = {}

    class Library:
        @staticmethod
        def snapshot_download(name: str, **options: Any) -> str:
            asked.update(options, name=name)
            return "/cache/x"

    monkeypatch.setitem(sys.modules, "huggingface_hub", Library)
    assert local_checkpoint(Path("org/name@refs/pr/3")) == Path("/cache/x")
    assert (asked["name"], asked["revision"]) == ("org/name", "refs/pr/3")
    assert "*.safetensors" in asked["allow_patterns"] and "*.bin" not in asked["allow_patterns"]


def test_commit_of_a_snapshot_stands_in_the_manifest(tmp_path) -> None:
    folder = tmp_path / "models--org--name" / "snapshots" / COMMIT
    checkpoint = Checkpoint.open(write_checkpoint(folder, "llama"))
    spec = read_source(checkpoint, read_model(checkpoint), name=None).spec
    assert (spec.name, spec.revision) == ("org/name", COMMIT)
    assert snapshot_commit(tmp_path) is None
