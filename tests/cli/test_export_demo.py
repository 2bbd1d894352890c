"""``selfdraft export`` and ``demo``: from a checkpoint to text, with the real exporter and engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import write_checkpoint
from support.reciting_bundle import write_reciting_bundle

from selfdraft.cli import demo_bundle
from selfdraft.errors import ConfigError

pytest.importorskip("torch", reason="the exporter needs torch: pip install 'selfdraft[export]'")
pytest.importorskip("onnxruntime", reason="the engine: pip install 'selfdraft[cpu]'")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("demo") / "checkpoint", layers=1)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def test_demo_exports_answers_and_measures(run: Any, checkpoint: Path, home: Path) -> None:
    options = ("--checkpoint", checkpoint, "--home", home)
    first = run("demo", "hello", *options)
    assert first.exit_code == 0, first.stderr
    assert "exporting" in first.stderr and "> hello" in first.stderr
    assert "measured now on one prompt" in first.stdout
    assert "plain" in first.stdout and "1 draft" in first.stdout
    assert f"selfdraft chat {home / 'demo'}" in first.stdout
    again = run("demo", "hello", *options, "--json")
    assert again.exit_code == 0 and "exporting" not in again.stderr
    record = json.loads(again.stdout)
    assert [m["drafts"] for m in record["measured"]] == [0, 1]
    text = first.stdout_bytes.decode().split("\nmeasured now")[0]
    assert text.startswith(record["reply"]["text"])


def test_engine_and_reference_generate_the_same(run: Any, checkpoint: Path, home: Path) -> None:
    bundle = home / "demo"
    if not bundle.exists():
        run("demo", "hello", "--checkpoint", checkpoint, "--home", home)
    options = ("hello", "--max-tokens", 24, "--json")
    tokens = [
        json.loads(run("generate", bundle, *options, "--backend", name, "--drafts", k).stdout)[
            "tokens"
        ]
        for name, k in (("ort", 0), ("ort", 2), ("reference", 0), ("reference", 3))
    ]
    assert tokens == [tokens[0]] * 4 and len(tokens[0]) == 24


def test_export_without_head_says_speculation_is_off(run: Any, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "c", "llama", mtp=None, layers=1)
    result = run("export", source, "-o", tmp_path / "b")
    assert result.exit_code == 0, result.stderr
    assert "speculation is off" in result.stdout and "peak memory" in result.stdout
    assert f"selfdraft verify {tmp_path / 'b'}" in result.stdout
    assert set(result.stderr.split()) == {"embedding", "weights", "graphs", "hashes"}
    facts = json.loads(run("inspect", tmp_path / "b", "--json").stdout)
    assert set(facts["mtp_bytes"].values()) == {0}
    assert facts["state_bytes"]["backbone"] > 0


def test_dry_run_writes_nothing(run: Any, checkpoint: Path, tmp_path: Path) -> None:
    result = run("export", checkpoint, "-o", tmp_path / "b", "--dry-run", "--json")
    plan = json.loads(result.stdout)
    assert plan["dry_run"] and plan["has_mtp"] and plan["disk_bytes_at_most"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "code", "part"),
    [
        (["--weights", "int5"], 2, "weights 'int5' is unknown"),
        (["--int4-block", 32], 2, "no meaning without int4 weights"),
        (["--weights", "int4", "--int4-block", 31], 2, "int4_block 31"),
        (["--target", "orin-jp6", "--weights", "fp32"], 2, "target 'orin-jp6'"),
        (["--kv", "fp16"], 2, "kv 'fp16' is unknown with target 'cpu'"),
        (["--draft-vocab-text", "f"], 2, "without draft_vocab"),
        (["--context", 1], 2, "context is 1"),
        (["--context", 10**7], 2, "max_position_embeddings"),
    ],
)
def test_wrong_export_options_are_refused(
    run: Any, checkpoint: Path, tmp_path: Path, options: list[object], code: int, part: str
) -> None:
    result = run("export", checkpoint, "-o", tmp_path / "b", *options)
    assert result.exit_code == code and part in result.stderr, result.stderr
    assert not (tmp_path / "b").exists()


def test_folder_that_is_no_checkpoint_is_refused(run: Any, tmp_path: Path) -> None:
    result = run("export", tmp_path, "-o", tmp_path / "b")
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 2


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Count exports, and let each write a reciting bundle."""
    made: list[Path] = []

    def fake(_checkpoint: Path, output: Path, _options: object, _progress: object) -> None:
        import shutil

        shutil.rmtree(output, ignore_errors=True)
        made.append(write_reciting_bundle(output))

    monkeypatch.setattr("selfdraft.export.bundle.export_bundle", fake)
    return made


def test_demo_bundle_is_made_again_only_when_something_changed(
    exports: list[Path], tmp_path: Path
) -> None:
    source = tmp_path / "c"
    source.mkdir()
    (source / "config.json").write_text("{}")

    def make() -> Path:
        return demo_bundle.demo_bundle(source, tmp_path / "home", quiet=True)

    assert make() == make() and len(exports) == 1
    (source / "config.json").write_text("{ }")
    make()
    assert len(exports) == 2
    (make() / "weights.safetensors").write_bytes(b"damaged")
    make()
    assert len(exports) == 3


def test_demo_without_its_checkpoint_says_where_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_bundle, "CHECKPOINT", Path("no") / "checkpoint")
    with pytest.raises(ConfigError, match="not installed") as caught:
        demo_bundle.find_checkpoint(None)
    assert "--checkpoint" in caught.value.hint


def test_wrong_demo_checkpoint_is_refused(run: Any, tmp_path: Path) -> None:
    result = run("demo", "--checkpoint", tmp_path / "none")
    assert result.exit_code == 2 and "is no folder" in result.stderr


def test_unwritable_home_is_a_resource_error(
    exports: list[Path], run: Any, checkpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    result = run("demo", "--checkpoint", checkpoint, "--home", tmp_path / "file")
    assert result.exit_code == 4 and "SELFDRAFT_HOME" in result.stderr and not exports


def test_dry_run_says_that_the_output_is_in_the_way(
    run: Any, checkpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "b").write_text("a file")
    result = run("export", checkpoint, "-o", tmp_path / "b", "--dry-run")
    assert result.exit_code == 2 and "exists, and selfdraft did not write it" in result.stderr
