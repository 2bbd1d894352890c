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
