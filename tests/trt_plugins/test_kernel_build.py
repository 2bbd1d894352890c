"""``plugins build``: logs, occupancy, limits, compilers, files."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import pytest

from selfdraft.errors import ConfigError, DeviceError, ResourceError
from selfdraft.strict import StrictError
from selfdraft.trt_plugins.build import nvcc as nvcc_module
from selfdraft.trt_plugins.build.kernel_list import (
    KernelEntry,
    SourceFile,
    kernel_sources,
    plugin_folder,
)
from selfdraft.trt_plugins.build.nvcc import Nvcc
from selfdraft.trt_plugins.build.nvrtc import Nvrtc
from selfdraft.trt_plugins.build.occupancy import MULTIPROCESSORS, blocks_per_sm
from selfdraft.trt_plugins.build.ptxas_log import KernelUsage, kernel_usage
from selfdraft.trt_plugins.build.report import kernel_report
from selfdraft.trt_plugins.build.run import build_kernels, write_cubins
from selfdraft.trt_plugins.build.toolchain import Compiled, Toolchain
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.cached_attention.launches import StepShape

LOG_13 = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_87'
ptxas info    : Function properties for first
ptxas         .     24 bytes stack frame, 20 bytes spill stores, 48 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 408 bytes cmem[0]
ptxas info    : Compiling entry function 'second' for 'sm_87'
ptxas info    : Function properties for second
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 128 bytes smem, 360 bytes cmem[0]
"""
LOG_12 = """\
ptxas info    : Compiling entry function 'second' for 'sm_87'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 128 bytes smem, 360 bytes cmem[0]
ptxas info    : Compile time = 43.256 ms
"""
SMALL = KernelUsage(
    registers=10,
    static_shared_bytes=128,
    stack_bytes=0,
    spill_store_bytes=0,
    spill_load_bytes=0,
)
LIMITS = KernelEntry(threads=128, dynamic_shared_bytes=1024, min_blocks_per_sm=12, max_registers=16)


@dataclass(slots=True)
class FakeToolchain:
    """Answers with a log, and remembers what it was asked."""

    log: str = LOG_12
    name: str = "fake"
    version: str = "1.0"
    asked: list[tuple[str, str]] = field(default_factory=list)

    def compile(self, source: Path, *, arch: str, include: Sequence[Path]) -> Compiled:
        assert include == [plugin_folder()]
        self.asked.append((source.name, arch))
        return Compiled(cubin=f"{source.name} {arch}".encode(), log=self.log)


def _source(**kernels: KernelEntry) -> SourceFile:
    return SourceFile(op="op", path=Path("op/csrc/one.cu"), kernels=kernels)


def test_usage_is_read_from_the_logs_of_both_compilers() -> None:
    usage = kernel_usage(LOG_13)
    assert usage["first"] == KernelUsage(
        registers=168,
        static_shared_bytes=0,
        stack_bytes=24,
        spill_store_bytes=20,
        spill_load_bytes=48,
    )
    assert usage["second"] == SMALL
    assert kernel_usage(LOG_12) == {"second": replace(SMALL, registers=12)}


def test_a_log_without_registers_is_refused() -> None:
    with pytest.raises(ValueError, match="no registers or no spills for second"):
        kernel_usage(LOG_12.replace("registers", "things"))


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks"),
    [
        ("sm_80", 256, 64, 0, 4),
        ("sm_80", 256, 128, 0, 2),
        ("sm_80", 256, 129, 0, 1),  # 136 a thread once rounded up: one block of eight warps
        ("sm_87", 256, 80, 0, 3),
        ("sm_87", 256, 81, 0, 2),
        ("sm_87", 128, 32, 0, 12),  # 1,536 threads
        ("sm_87", 32, 16, 0, 16),  # the most blocks
        ("sm_80", 32, 16, 0, 32),
        ("sm_87", 128, 160, 64 * 1024, 2),
        ("sm_87", 128, 32, 82 * 1024, 1),  # 1 KiB of each block is the system's
        ("sm_90", 128, 32, 82 * 1024, 2),
        ("sm_87", 128, 32, 163 * 1024, 1),
        ("sm_87", 128, 32, 163 * 1024 + 1, 0),
    ],
)
def test_occupancy_follows_the_allocation_rules(
    arch: str, threads: int, registers: int, shared: int, blocks: int
) -> None:
    sm = MULTIPROCESSORS[arch]
    assert blocks_per_sm(sm, threads=threads, registers=registers, shared_bytes=shared) == blocks


def test_a_kernel_within_its_limits_breaks_none() -> None:
    report = kernel_report("op", "second", arch="sm_87", usage=SMALL, limits=LIMITS)
    assert report.violations == ()
    assert report.shared_bytes == 1152
    assert report.blocks_per_sm == 12 and report.occupancy == 1.0


@pytest.mark.parametrize(
    ("usage", "limits", "broken"),
    [
        (replace(SMALL, registers=17), LIMITS, "17 registers, limit 16"),
        (replace(SMALL, spill_load_bytes=4), LIMITS, "spills 4 bytes, limit 0"),
        (replace(SMALL, spill_store_bytes=8), LIMITS, "spills 8 bytes, limit 0"),
        (SMALL, replace(LIMITS, dynamic_shared_bytes=64 * 1024), "2 blocks on a multiprocessor"),
    ],
)
def test_each_broken_limit_is_named(usage: KernelUsage, limits: KernelEntry, broken: str) -> None:
    report = kernel_report("op", "second", arch="sm_87", usage=usage, limits=limits)
    assert len(report.violations) == 1 and report.violations[0].startswith(broken)


def test_every_source_is_compiled_for_every_architecture_and_written(tmp_path: Path) -> None:
    toolchain = FakeToolchain()
    seen: list[tuple[str, int, int]] = []
    build = build_kernels(
        [_source(second=LIMITS)],
        toolchain=toolchain,
        architectures=["sm_87", "sm_90"],
        on_progress=lambda stage, done, total: seen.append((stage, done, total)),
    )
    assert toolchain.asked == [("one.cu", "sm_87"), ("one.cu", "sm_90")]
    assert seen == [("one.cu for sm_87", 0, 2), ("one.cu for sm_90", 1, 2)]
    write_cubins(build, tmp_path)
    assert (tmp_path / "op" / "one.sm_90.cubin").read_bytes() == b"one.cu sm_90"
    assert sorted(path.name for path in (tmp_path / "op").iterdir()) == sorted(
        Path(name).name for name in build.record()["files"]
    )


def test_a_place_that_cannot_be_written_is_a_resource_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    build = build_kernels(
        [_source(second=LIMITS)], toolchain=FakeToolchain(), architectures=["sm_87"]
    )
    with pytest.raises(ResourceError, match="cannot be written"):
        write_cubins(build, tmp_path / "file")


def test_an_unknown_architecture_is_refused_with_the_nearest_known() -> None:
    with pytest.raises(ConfigError, match=r"'sm_86' \(did you mean 'sm_8"):
        build_kernels([], toolchain=FakeToolchain(), architectures=["sm_86"])


@pytest.mark.parametrize("listed", [{}, {"second": LIMITS, "third": LIMITS}])
def test_a_kernel_without_limits_and_limits_without_a_kernel_are_refused(
    listed: dict[str, KernelEntry],
) -> None:
    with pytest.raises(DeviceError, match="disagree on: (second|third)"):
        build_kernels([_source(**listed)], toolchain=FakeToolchain(), architectures=["sm_87"])


def test_every_kernel_file_is_listed() -> None:
    listed = {source.path.resolve() for source in kernel_sources()}
    assert listed == {path.resolve() for path in plugin_folder().glob("*/csrc/*.cu")}


def test_an_unknown_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "op").mkdir()
    entry = {"threads": 1, "dynamic_shared_bytes": 0, "min_blocks_per_sm": 1, "max_register": 1}
    listed = {"sources": [{"source": "csrc/one.cu", "kernels": {"second": entry}}]}
    (tmp_path / "op" / "kernels.json").write_text(json.dumps(listed))
    with pytest.raises(StrictError, match=r"'max_register' \(did you mean 'max_registers'\?\)"):
        kernel_sources(tmp_path)


def test_a_missing_nvcc_names_where_it_was_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(nvcc_module, "TOOLKIT_PATH", tmp_path / "nvcc")
    with pytest.raises(DeviceError, match="nvcc is neither on PATH nor at") as found:
        Nvcc()
    assert "--compiler nvrtc" in found.value.hint


def test_nvcc_off_the_path_is_found_in_the_toolkits_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(nvcc_module, "TOOLKIT_PATH", _fake_nvcc(tmp_path, exit_code=0))
    assert Nvcc().version == "12.6"


@pytest.mark.parametrize("content", ["#!/bin/sh\necho broken >&2; exit 1\n", "no program"])
def test_an_nvcc_that_does_not_run_is_a_device_error(tmp_path: Path, content: str) -> None:
    program = tmp_path / "nvcc"
    program.write_text(content)
    program.chmod(0o755)
    with pytest.raises(DeviceError, match="--version fails: broken|cannot be run"):
        Nvcc(program)


def test_the_compilers_own_error_line_reaches_the_user(tmp_path: Path) -> None:
    nvcc = Nvcc(_fake_nvcc(tmp_path, exit_code=1))
    with pytest.raises(DeviceError, match=r"cannot compile one.cu for sm_87: one.cu\(3\): error"):
        nvcc.compile(Path("one.cu"), arch="sm_87", include=[])


def test_a_missing_nvrtc_names_the_package_to_install(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="NVRTC cannot be loaded") as found:
        Nvrtc(tmp_path / "libnvrtc.so.12")
    assert "nvidia-cuda-nvrtc-cu12==12.6" in found.value.hint


def _fake_nvcc(folder: Path, *, exit_code: int) -> Path:
    """Tells release 12.6; compiles nothing."""
    program = folder / "nvcc"
    program.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "release 12.6, V12.6.68" && exit 0\n'
        f'echo "one.cu(1): warning: w"\necho "one.cu(3): error: e" >&2\nexit {exit_code}\n'
    )
    program.chmod(0o755)
    return program


@pytest.fixture(params=["nvcc", "nvrtc"])
def toolchain(request: pytest.FixtureRequest) -> Toolchain:
    """A real compiler; its tests are skipped where it is missing."""
    try:
        return Nvcc() if request.param == "nvcc" else Nvrtc()
    except DeviceError as error:
        pytest.skip(f"{error.problem}; {error.hint}")


SOURCES = {f"{source.op}/{source.path.stem}": source for source in kernel_sources()}
COMPILED_EACH_TIME = (
    ("nvcc", "int4_matmul/int4_matmul"),
    ("nvcc", "cached_attention/attend"),
    ("nvrtc", "cached_attention/select"),
)
"""What every run compiles; the rest takes half a minute and is left to ``make test-full``."""


@pytest.mark.parametrize(
    ("toolchain", "name"),
    [
        pytest.param(
            compiler,
            name,
            marks=() if (compiler, name) in COMPILED_EACH_TIME else pytest.mark.slow,
        )
        for compiler in ("nvcc", "nvrtc")
        for name in SOURCES
    ],
    indirect=["toolchain"],
)
def test_kernels_keep_their_limits_on_orin(toolchain: Toolchain, name: str) -> None:
    build = build_kernels([SOURCES[name]], toolchain=toolchain, architectures=["sm_87"])
    assert build.broken_limits == []
    for kernel in build.kernels:
        usage = kernel.usage
        assert usage.spill_store_bytes == usage.spill_load_bytes == usage.stack_bytes == 0
    assert all(cubin.content.startswith(b"\x7fELF") for cubin in build.cubins)


def test_attention_limits_hold_for_the_launches_of_a_cache_of_131072_tokens() -> None:
    listed = {
        name: (entry.threads, entry.dynamic_shared_bytes)
        for source in kernel_sources()
        if source.op == "cached_attention"
        for name, entry in source.kernels.items()
    }
    launched = {}
    for head_dim, kv_dtype, selector in product(
        (64, 128, 256), ("fp16", "int8"), ("mean_std", "infllm_v2")
    ):
        op = CachedAttention(
            num_heads=16,
            num_kv_heads=8,
            head_dim=head_dim,
            scale=1.0,
            selector=selector,
            local_blocks=3,
            kv_dtype=kv_dtype,
        )
        decode = StepShape(op=op, batch=1, rows=1, blocks=2050, splits=4)
        chunk = StepShape(op=op, batch=1, rows=512, blocks=2050, prefill=True)
        for launch in (*decode.launches(), *chunk.launches()):
            launched[launch.kernel] = (launch.threads, launch.shared_bytes)
    assert launched == listed


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_all_kernels_keep_their_limits_on_test_machines(toolchain: Toolchain, arch: str) -> None:
    build = build_kernels(kernel_sources(), toolchain=toolchain, architectures=[arch])
    assert build.broken_limits == []


def test_a_source_that_is_wrong_is_refused_with_its_line(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.cu"
    wrong.write_text("int good;\nint bad = missing_name;\n")
    with pytest.raises(DeviceError, match=re.compile(r"wrong\.cu.*missing_name")):
        toolchain.compile(wrong, arch="sm_87", include=[])


def test_kernels_need_no_standard_header_and_hold_no_ptx() -> None:
    sources = list(plugin_folder().glob("*/csrc/*.cu*"))
    assert sources
    for path in sources:
        text = path.read_text()
        assert "#include <" not in text, f"{path}: NVRTC has no standard headers"
        assert "asm" not in text, f"{path}: PTX belongs in csrc/device.cuh"
