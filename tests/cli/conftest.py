"""Bundles that recite, and a way to run ``selfdraft`` in this process or in one of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import write_checkpoint
from support.reciting_bundle import write_reciting_bundle
from typer.testing import CliRunner

from selfdraft.cli.main import app

SOURCES = str(Path(sys.modules["selfdraft"].__file__ or "").parent.parent)

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the developer's own settings; the slow but dependency-free backend."""
    for name in [name for name in os.environ if name.startswith(("SELFDRAFT_", "_SELFDRAFT"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SELFDRAFT_BACKEND", "reference")
    monkeypatch.setenv("SELFDRAFT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(scope="session")
def shared_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reciting bundle; not to be changed."""
    return write_reciting_bundle(tmp_path_factory.mktemp("bundles") / "reciter")


@pytest.fixture(scope="session")
def endless_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its replies end with the context only; not to be changed."""
    folder = tmp_path_factory.mktemp("bundles") / "endless"
    return write_reciting_bundle(folder, endless=True, context=8192)


LONG_CONTEXT = 40_000
SPARSE_OPTIONS = (
    *("--attention", "sparse", "--selector", "min_max", "--budget", 256, "--budget-share", 0.25),
    *("--sinks", 2, "--local-blocks", 2, "--first-layers", 1, "--first-budget", 640),
    *("--mtp-window", 100, "--kv", "int8", "--context", 2048),
)


@pytest.fixture(scope="session")
def long_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint of two layers whose config allows ``LONG_CONTEXT`` tokens."""
    folder = tmp_path_factory.mktemp("checkpoints") / "long"
    return write_checkpoint(folder, layers=2, context=LONG_CONTEXT)


@pytest.fixture(scope="session")
def sparse_bundle(long_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its bundle with ``SPARSE_OPTIONS``, exported by the command; not to be changed."""
    pytest.importorskip("torch", reason="the exporter: pip install 'selfdraft[export]'")
    pytest.importorskip("onnxruntime", reason="the engine: pip install 'selfdraft[cpu]'")
    output = tmp_path_factory.mktemp("bundles") / "sparse"
    arguments = ["export", str(long_checkpoint), "-o", str(output), *map(str, SPARSE_OPTIONS)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    return output


@pytest.fixture
def own_bundle(shared_bundle: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(shared_bundle, tmp_path / "bundle"))


@pytest.fixture
def run() -> Run:
    """``run("generate", bundle, "hi", input="…")`` in this process."""
    runner = CliRunner()

    def invoke(*args: object, **settings: Any) -> Any:
        return runner.invoke(app, [str(arg) for arg in args], prog_name="selfdraft", **settings)

    return invoke


@pytest.fixture
def process_environment() -> dict[str, str]:
    """Environment in which a child process imports these sources."""
    return {**os.environ, "PYTHONPATH": SOURCES}


@pytest.fixture
def run_process(process_environment: dict[str, str]) -> Run:
    """``run_process("--help")`` in a process of its own."""

    def invoke(*args: object, **settings: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "selfdraft.cli.main", *map(str, args)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=process_environment,
            **settings,
        )

    return invoke
