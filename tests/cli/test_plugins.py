"""``selfdraft plugins build``: what it prints, writes, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from selfdraft.trt_plugins.build import kernel_list
from selfdraft.trt_plugins.build import run as run_module
from selfdraft.trt_plugins.build.kernel_list import KernelEntry, SourceFile
from selfdraft.trt_plugins.build.toolchain import Compiled

LOG = """\
ptxas info    : Compiling entry function 'one' for 'sm_87'
    0 bytes stack frame, {spills} bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, 360 bytes cmem[0]
"""


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """One kernel, compiled by nobody; the dictionary says how many bytes it spills."""
    facts = {"spills": 0}

    class Fake:
        name, version = "nvcc", "13.0"

        def __init__(self, path: Path | None = None) -> None:
            del path

        def compile(self, source: Path, *, arch: str, include: Any) -> Compiled:
            return Compiled(cubin=b"code", log=LOG.format(**facts))

    limits = KernelEntry(
        threads=128,
        dynamic_shared_bytes=0,
        min_blocks_per_sm=2,
        max_registers=64,
        reason="why it is so",
    )
    sources = [SourceFile(op="op", path=Path("csrc/one.cu"), kernels={"one": limits})]
    monkeypatch.setattr(kernel_list, "kernel_sources", lambda: sources)
    monkeypatch.setattr("selfdraft.trt_plugins.build.nvcc.Nvcc", Fake)
    assert run_module.kernel_usage(LOG.format(spills=0))
    return facts


def test_the_report_has_a_row_for_each_kernel_and_names_the_files(
    run: Any, compiled: dict[str, int], tmp_path: Path
) -> None:
    result = run("plugins", "build", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    row = next(line for line in result.stdout.splitlines() if line.startswith("one "))
    assert row.split() == ["one", "sm_87", "40", "0", "0", "12", "100%", "kept"]
    assert "one: why it is so" in result.stdout
    assert (tmp_path / "out" / "op" / "one.sm_87.cubin").read_bytes() == b"code"
    assert f"wrote {tmp_path / 'out' / 'op' / 'one.sm_87.cubin'}" in result.stdout


def test_a_broken_limit_ends_with_code_6_and_writes_nothing(
    run: Any, compiled: dict[str, int], tmp_path: Path
) -> None:
    compiled["spills"] = 8
    result = run("plugins", "build", "-o", tmp_path / "out", "--json")
    assert result.exit_code == 6
    assert "one on sm_87: spills 8 bytes, limit 0" in result.stderr
    record = json.loads(result.stdout)
    assert record["broken_limits"] == ["one on sm_87: spills 8 bytes, limit 0"]
    assert record["output"] is None and not (tmp_path / "out").exists()


def test_json_holds_usage_limits_and_hashes(run: Any, compiled: dict[str, int]) -> None:
    record = json.loads(run("plugins", "build", "--json").stdout)
    assert record["schema"] == "selfdraft.plugins/1"
    assert record["compiler"] == {"name": "nvcc", "version": "13.0"}
    (kernel,) = record["kernels"]
    assert kernel["usage"]["registers"] == 40 and kernel["limits"]["max_registers"] == 64
    assert len(record["files"]["op/one.sm_87.cubin"]["sha256"]) == 64


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["biuld"], 2, "did you mean 'build'?"),
        (["build", "--compiler", "clang"], 2, "--compiler is 'clang'"),
        (["build", "--arch", "sm_86"], 2, "unknown architecture 'sm_86'"),
        (["build", "--compiler", "nvrtc", "--nvcc", "nvcc"], 2, "--nvcc has no meaning"),
    ],
)
def test_wrong_options_are_refused(
    run: Any, compiled: dict[str, int], arguments: list[str], code: int, said: str
) -> None:
    result = run("plugins", *arguments)
    assert result.exit_code == code and said in result.stderr


def test_a_missing_nvcc_is_named_with_what_to_do(run: Any, tmp_path: Path) -> None:
    result = run("plugins", "build", "--nvcc", tmp_path / "nvcc")
    assert result.exit_code == 5
    assert f"{tmp_path / 'nvcc'} is no file" in result.stderr and "hint:" in result.stderr


@pytest.fixture
def linked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Path, str]]:
    """No C++ is compiled; the list has what was asked for: path and processor."""
    from selfdraft.trt_plugins.library import build, headers

    asked: list[tuple[Path, str]] = []
    found = headers.Headers(folder=tmp_path, version=(10, 3))

    def fake(kernels: Any, output: Path, *, headers: Any, host: Any) -> build.PluginLibrary:
        asked.append((output, host))
        return build.PluginLibrary(
            path=output,
            bytes=1024,
            sha256="ab" * 32,
            host=host,
            headers=headers,
            needs={"GLIBC": (2, 34)},
        )

    monkeypatch.setattr(headers, "find_headers", lambda given: found)
    monkeypatch.setattr(build, "find_compiler", lambda host: "g++")
    monkeypatch.setattr(build, "build_library", fake)
    return asked


def test_the_library_goes_where_it_is_told(
    run: Any, compiled: dict[str, int], linked: list[tuple[Path, str]], tmp_path: Path
) -> None:
    target = tmp_path / "lib.so"
    result = run("plugins", "build", "--library", target, "--host", "aarch64", "--json")
    assert result.exit_code == 0, result.output
    assert linked == [(target, "aarch64")]
    record = json.loads(result.stdout)["library"]
    assert record["tensorrt_headers"] == [10, 3] and record["needs"] == {"GLIBC": [2, 34]}
    assert (record["path"], record["sha256"]) == (str(target), "ab" * 32)


def test_install_writes_where_engines_and_doctor_look(
    run: Any,
    compiled: dict[str, int],
    linked: list[tuple[Path, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    from selfdraft.jetson.software import HOME_VARIABLE, PLUGIN_NAME

    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    result = run("plugins", "build", "--install")
    assert linked == [(tmp_path / "plugins" / PLUGIN_NAME, "native")]
    assert f"wrote {linked[0][0]} (1.0 KiB, native)" in result.stdout
    assert "TensorRT headers 10.3" in result.stdout and "needs GLIBC 2.34" in result.stdout


def test_a_broken_limit_writes_no_library(
    run: Any, compiled: dict[str, int], linked: list[tuple[Path, str]], tmp_path: Path
) -> None:
    compiled["spills"] = 8
    assert run("plugins", "build", "--library", tmp_path / "lib.so").exit_code == 6
    assert linked == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "aarch64"], "--host has no meaning without --library"),
        (["--tensorrt-include", "x"], "--tensorrt-include has no meaning without --library"),
        (["--host", "arm", "--library", "x"], "--host is 'arm'"),
        (["--install", "--library", "x"], "--install and --library x name two places"),
    ],
)
def test_library_options_that_say_nothing_are_refused(
    run: Any, compiled: dict[str, int], arguments: list[str], said: str
) -> None:
    result = run("plugins", "build", *arguments)
    assert result.exit_code == 2 and said in result.stderr
