"""``selfdraft build`` and running its engines through the CLI, on the double of TensorRT."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the exporter: pip install 'selfdraft[export]'")
from support.engine_bundle import export_orin_demo, write_plugin_library
from support.trt_double.install import Double, installed, make_double

from selfdraft.cli import build_room
from selfdraft.cli.weight_sizes import bytes_by_part
from selfdraft.manifest import load_manifest
from selfdraft.runtime.bundle import Bundle

GIB = 1 << 30


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The demo for a board; not to be changed."""
    folder = tmp_path_factory.mktemp("orin") / "bundle"
    return export_orin_demo(folder, weights="int4", context=256)


@pytest.fixture
def bundle(exported: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for suffix in ("", ".check"):
        shutil.copytree(f"{exported.path}{suffix}", tmp_path / f"bundle{suffix}")
    library = write_plugin_library(tmp_path / "libselfdraft_plugins.so")
    monkeypatch.setenv("SELFDRAFT_PLUGIN_PATH", str(library))
    monkeypatch.delenv("SELFDRAFT_BACKEND")
    return tmp_path / "bundle"


@pytest.fixture
def double() -> Iterator[Double]:
    with installed(make_double()) as double:
        yield double


def test_plan_counts_what_a_bundle_for_boards_holds(run: Any, exported: Bundle) -> None:
    held = bytes_by_part(exported.path, exported.manifest)
    assert exported.manifest.precision.lm_head == "int4", "what the exporter chose, not the planner"
    planned = {}
    for head in ((), ("--head", "fp16")):
        result = run("plan", exported.path, *head, "--json")
        assert result.exit_code == 0, result.stderr
        (row,) = json.loads(result.stdout)["contexts"]
        planned[head] = {part["name"]: part["num_bytes"] for part in row["memory"]["parts"]}
    assert held.items() <= planned[()].items()
    assert planned["--head", "fp16"]["lm_head"] > 3 * held["lm_head"]


def test_dry_run_shows_the_plan_without_tensorrt(
    run: Any, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    monkeypatch.setitem(sys.modules, "pycuda", None)
    result = run("build", bundle, "--dry-run", "--batch", 2, "--chunk", 128)
    assert result.exit_code == 0, result.stderr
    for text in ("selfdraft::CachedAttention 1", "1, 2, 9", "1, 128, 128", "64, 384, 384"):
        assert text in result.stdout, result.stdout
    assert "nothing is built" in result.stdout and not (bundle / "engines").exists()
    record = json.loads(run("build", bundle, "--dry-run", "--json").stdout)
    assert record["limits"]["batch"] == 1 and record["plugin_nodes"]["backbone"] == 16
    assert record["room"]["peak_bytes"] > record["room"]["disk_bytes"] > 0
    assert not result.stderr
    few = run("build", bundle, "--dry-run", "--chunk", 8)
    assert "--chunk 8 is built as 66" in few.stderr and "1, 66, 66" in few.stdout
    assert run("build", bundle).exit_code == 5, "without TensorRT nothing else goes"


def test_engine_built_for_less_than_the_bundle_holds_sets_the_defaults(
    run: Any, bundle: Path, double: Double
) -> None:
    assert run("build", bundle, "--context", 128, "--chunk", 70).exit_code == 0
    prompt = "water " * 45
    reply = run("generate", bundle, prompt, "--raw", "--max-tokens", 60, "--json")
    assert reply.exit_code == 0, reply.stderr
    record = json.loads(reply.stdout)
    length = len(record["prompt_token_ids"]) + len(record["tokens"])
    assert len(record["prompt_token_ids"]) > 70 and length <= 128
    more = run("generate", bundle, prompt, "--raw", "--context", 200)
    assert more.exit_code == 2 and "the engine was built for 128 tokens" in more.stderr
    assert f"selfdraft build {bundle} --context 200" in more.stderr


def test_damaged_record_of_an_engine_is_refused_before_anything_is_shown(
    run: Any, bundle: Path, double: Double
) -> None:
    assert run("build", bundle, "--batch", 3).exit_code == 0
    engines = json.loads(run("inspect", bundle, "--json").stdout)["engines"]
    assert engines["sm87"]["limits"]["batch"] == 3 and engines["sm87"]["tensorrt"] == "10.3.0"
    (bundle / "engines" / "sm87" / "engine.json").write_text("{")
    shown = run("inspect", bundle)
    assert shown.exit_code == 3 and not shown.stdout
    assert f"selfdraft build {bundle}" in shown.stderr


def test_built_bundle_generates_and_inspect_and_verify_take_it(
    run: Any, bundle: Path, double: Double
) -> None:
    result = run("build", bundle)
    assert result.exit_code == 0, result.stderr
    assert "backbone.plan" in result.stdout and "mtp: Building engine" in result.stderr
    reply = run("generate", bundle, "water", "--raw", "--max-tokens", 6, "--json")
    assert reply.exit_code == 0, reply.stderr
    plain = run(
        *("generate", bundle, "water", "--raw", "--max-tokens", 6, "--json", "--drafts", 0),
        *("--backend", "tensorrt"),
    )
    texts = [json.loads(r.stdout)["text"] for r in (reply, plain)]
    assert texts[0] == texts[1] and texts[0]
    shown = run("inspect", bundle)
    assert "sm87" in shown.stdout and "TensorRT 10.3.0" in shown.stdout
    assert run("verify", bundle, "--hashes").exit_code == 0
    plan = bundle / "engines" / "sm87" / "mtp.plan"
    plan.write_bytes(plan.read_bytes()[:-1])
    damaged = run("verify", bundle, "--hashes")
    assert damaged.exit_code == 6 and "mtp.plan" in damaged.stdout
    assert f"selfdraft build {bundle}" in damaged.stderr


@pytest.mark.slow
def test_probe_measures_the_engines(run: Any, bundle: Path, double: Double, tmp_path: Path) -> None:
    assert run("build", bundle).exit_code == 0
    text = tmp_path / "text.txt"
    text.write_text("What is the capital of Ireland? That would be Dublin. " * 8)
    options = ("--text", text, "--tokens", 64, "--json")
    told = [run("probe", bundle, *options, *b) for b in ((), ("--backend", "reference"))]
    assert [result.exit_code for result in told] == [0, 0], told[0].stderr + told[1].stderr
    records = [json.loads(result.stdout) for result in told]
    found = [record["measurements"][0]["share"] for record in records]
    assert found[0]["rows"] == found[1]["rows"] == 63
    assert found[0]["value"] == pytest.approx(found[1]["value"], abs=0.05)


def test_pruned_bundle_runs_its_engines_and_nothing_else(
    run: Any, bundle: Path, double: Double
) -> None:
    result = run("build", bundle, "--prune", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["pruned"] == ["weights.safetensors"]
    assert not (bundle / "weights.safetensors").exists()
    assert run("generate", bundle, "water", "--raw", "--max-tokens", 3).exit_code == 0
    checked = run("verify", bundle, "--hashes")
    files = len(load_manifest(bundle).files)
    assert checked.exit_code == 0
    assert f"{files - 1} files and their hashes; pruned: weights.safetensors" in checked.stdout
    refused = run("generate", bundle, "water", "--raw", "--backend", "reference")
    assert refused.exit_code == 3 and "pruned" in refused.stderr
    names = ["weights.safetensors", "embedding.safetensors"]
    (bundle / "engines" / "pruned.json").write_text(json.dumps({"files": names}))
    (bundle / "embedding.safetensors").unlink()
    gone = run("generate", bundle, "water", "--raw")
    assert gone.exit_code == 3 and "embedding.safetensors is missing" in gone.stderr
    (bundle / "engines" / "pruned.json").write_text("[]")
    assert "cannot be read" in run("generate", bundle, "water", "--raw").stderr


@pytest.mark.parametrize("short", ["memory", "disk"])
def test_board_that_is_too_small_is_told_before_anything_is_loaded(
    run: Any, bundle: Path, double: Double, monkeypatch: pytest.MonkeyPatch, short: str
) -> None:
    room = build_room.BuildRoom(
        peak_bytes=9 * GIB if short == "memory" else 1,
        available_bytes=8 * GIB,
        disk_bytes=9 * GIB if short == "disk" else 1,
        free_disk_bytes=8 * GIB,
    )
    monkeypatch.setattr(build_room, "build_room", lambda *_, **__: room)
    result = run("build", bundle)
    assert result.exit_code == 4 and "9.0 GiB" in result.stderr and "8.0 GiB" in result.stderr
    assert "(estimate)" in result.stderr and not double.tensorrt.steps
    assert "TOO LITTLE" in run("build", bundle, "--dry-run").stdout
    assert run("build", bundle, "--force").exit_code == 0


def test_bundles_and_backends_that_do_not_fit_are_refused(
    run: Any, bundle: Path, shared_bundle: Path, double: Double
) -> None:
    cpu = run("build", shared_bundle)
    assert cpu.exit_code == 2 and "--target orin-jp6" in cpu.stderr
    wrong = run("generate", bundle, "x", "--raw", "--backend", "ort")
    assert wrong.exit_code == 2 and "only TensorRT runs" in wrong.stderr
    wrong = run("generate", shared_bundle, "x", "--raw", "--backend", "tensorrt")
    assert wrong.exit_code == 2 and "not for a board" in wrong.stderr
    unbuilt = run("generate", bundle, "x", "--raw")
    assert unbuilt.exit_code == 3 and f"selfdraft build {bundle}" in unbuilt.stderr
    many = run("build", bundle, "--context", 300)
    assert many.exit_code == 2 and "holds 256" in many.stderr
