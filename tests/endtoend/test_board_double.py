"""The demo and a hybrid model all the way to a board, by the commands: exported, built, and run.

On the double of TensorRT (tests/support/trt_double), which runs the check variant of the graphs: tokens
are those of the fp64 reference on the same bundle. Nothing here has seen a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine_bundle import DEMO, write_plugin_library
from support.hybrid import FOR_BOARDS, write_hybrid
from support.trt_double.install import installed, make_double
from typer.testing import CliRunner

from selfdraft.cli.main import app
from selfdraft.export.check_variant import write_check_variant
from selfdraft.manifest import load_manifest

pytestmark = pytest.mark.slow

PROMPT = "What is the capital of Ireland?"
LONG = f"{'Tell me about water and stone. ' * 40}{PROMPT}"
"""Of more tokens than the sparse budget."""
LONG_IN_BYTES = LONG[-300:]
"""For a tokenizer that knows bytes alone."""
SPARSE = ("--attention", "sparse", "--budget", 256, "--local-blocks", 2, "--kv", "int8")
EXPORTS: dict[str, tuple[object, ...]] = {
    "jp6 fp16": ("--target", "orin-jp6"),
    "jp7 int4 sparse": ("--target", "orin-jp7", "--weights", "int4", *SPARSE),
    "jp6 hybrid": ("--target", "orin-jp6"),
    "jp7 hybrid int4": ("--target", "orin-jp7", "--weights", "int4"),
}
Run = Callable[..., Any]


def run(*arguments: object, **settings: Any) -> Any:
    result = CliRunner().invoke(app, [str(a) for a in arguments], prog_name="selfdraft", **settings)
    assert result.exit_code == 0, result.stderr
    return result


@pytest.fixture(scope="module", params=EXPORTS)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exported by the command; its check variant beside it, as the double wants it."""
    folder = tmp_path_factory.mktemp("board") / "demo.sd"
    source = DEMO
    if "hybrid" in request.param:
        source = folder.with_name("checkpoint")
        write_hybrid(source, changes=FOR_BOARDS)
    run("export", source, "-o", folder, "--context", 512, *EXPORTS[request.param])
    checked = folder.with_name(f"{folder.name}.check")
    checked.mkdir()
    write_check_variant(folder, load_manifest(folder), checked)
    return folder


@pytest.fixture
def board(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, Any]]:
    """The bundle with its engines, and the double that runs them."""
    library = write_plugin_library(tmp_path / "libselfdraft_plugins.so")
    monkeypatch.setenv("SELFDRAFT_PLUGIN_PATH", str(library))
    with installed(make_double()) as double:
        built = run("build", bundle, "--batch", 2, "--context", 448, "--chunk", 80)
        assert "backbone.plan" in built.stdout
        yield bundle, double


def by_both(board: tuple[Path, Any], *arguments: object, **settings: Any) -> list[Any]:
    """What the engines and the reference say to the same command."""
    bundle, double = board
    command, *options = arguments
    results = []
    for backend in ("tensorrt", "reference"):
        before = double.driver.num_launches
        context = ("--context", 448, "--backend", backend)
        results.append(run(command, bundle, *options, *context, **settings))
        assert (double.driver.num_launches > before) == (backend == "tensorrt")
    return results


@pytest.mark.parametrize("drafts", [0, 3])
def test_generate_says_what_the_reference_says(board: tuple[Path, Any], drafts: int) -> None:
    options = ("--json", "--max-tokens", 12, "--drafts", drafts, "--mode", "greedy")
    is_hybrid = load_manifest(board[0]).model.delta is not None
    prompt = LONG_IN_BYTES if is_hybrid else LONG
    engine, reference = (json.loads(r.stdout) for r in by_both(board, "generate", prompt, *options))
    assert len(engine["prompt_token_ids"]) > 280
    assert engine["tokens"] == reference["tokens"] and len(engine["tokens"]) > 4
    assert engine["accepted"] == reference["accepted"]


def test_chat_says_it_over_several_turns(board: tuple[Path, Any]) -> None:
    lines = f"{PROMPT}\nAnd of France?\n" + "Tell me about water. " * 4 + "\n"
    options = ("--json", "--max-tokens", 8, "--drafts", 1, "--mode", "greedy")
    engine, reference = (
        [json.loads(line) for line in r.stdout.splitlines()]
        for r in by_both(board, "chat", *options, input=lines)
    )
    # A random model's bytes are no text: the next prompt has others, and no state lies before them.
    reuses = load_manifest(board[0]).model.delta is None
    assert len(engine) == 3 and (engine[1]["reused_tokens"] > 0) == reuses
    for key in ("tokens", "accepted", "reused_tokens"):
        assert [turn[key] for turn in engine] == [turn[key] for turn in reference]


def test_bench_measures_the_engines(board: tuple[Path, Any]) -> None:
    bundle, _ = board
    options = ("--json", "--context", "100", "--tokens", 6, "--repeats", 1, "--warmup", 0)
    lines = [json.loads(line) for line in run("bench", bundle, *options).stdout.splitlines()]
    assert lines and all(line["backend"] == "tensorrt" for line in lines)
