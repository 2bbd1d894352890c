"""Compiling the plugin library: headers, what it needs of a system, and the build for a board."""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from support.plugin_probe import headers, host_kernels, probe
from support.refusals import refused

from selfdraft.errors import DeviceError, ResourceError
from selfdraft.jetson.elf import Cubin as ElfCubin
from selfdraft.jetson.elf import parse_library
from selfdraft.trt_plugins.build.kernel_list import kernel_sources
from selfdraft.trt_plugins.build.nvrtc import Nvrtc
from selfdraft.trt_plugins.build.run import Build, Cubin, build_kernels
from selfdraft.trt_plugins.library import build as build_module
from selfdraft.trt_plugins.library.build import build_library, find_compiler
from selfdraft.trt_plugins.library.headers import Headers, find_headers
from selfdraft.trt_plugins.library.needs import JETPACK_6, needed_versions, too_new

LOADER = """
#include <dlfcn.h>
#include <cstdint>
#include <cstdio>
int main(int, char** arguments) {
  void* library = dlopen(arguments[1], RTLD_NOW);
  if (!library) return std::puts(dlerror()), 1;
  auto creators = reinterpret_cast<void* const* (*)(std::int32_t&)>(dlsym(library, "getCreators"));
  auto describe = reinterpret_cast<const char* (*)()>(dlsym(library, "selfdraft_describe"));
  std::int32_t count = 0;
  creators(count);
  std::printf("%d %s\\n", count, describe());
}
"""
CUBINS = Build(
    compiler="fake",
    compiler_version="12.6",
    kernels=(),
    cubins=(
        Cubin(name="cached_attention/append.sm_87.cubin", content=b"\x7fELF first"),
        Cubin(name="int4_matmul/int4_matmul.sm_87.cubin", content=b"\x7fELF second one"),
    ),
)
FORMS = [
    "#define NV_TENSORRT_MAJOR 10 //!< major\n#define NV_TENSORRT_MINOR 3 //!< minor\n",
    "#define TRT_MAJOR_ENTERPRISE 10\n#define TRT_MINOR_ENTERPRISE 3\n",
]


def fake_headers(folder: Path, version: str) -> Path:
    (folder / "NvInferRuntime.h").write_text("")
    (folder / "NvInferVersion.h").write_text(version)
    return folder


@pytest.mark.parametrize("version", FORMS)
def test_version_of_headers_is_read_in_both_forms(tmp_path: Path, version: str) -> None:
    found = find_headers(fake_headers(tmp_path, version))
    assert found == Headers(folder=tmp_path, version=(10, 3))


def test_missing_or_nameless_headers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refused(str(tmp_path), "NvInferRuntime.h", error=DeviceError):
        find_headers(tmp_path)
    with refused("names no version", error=DeviceError):
        find_headers(fake_headers(tmp_path, "nothing"))
    module = "selfdraft.trt_plugins.library.headers"
    monkeypatch.setattr(f"{module}._system_folders", list)
    monkeypatch.setattr(f"{module}._package_folders", list)
    with refused("TensorRT's headers", error=DeviceError):
        find_headers()


def test_a_missing_compiler_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(DeviceError) as caught:
        find_compiler("aarch64")
    assert "aarch64-linux-gnu-g++ is not installed" in caught.value.problem
    assert "g++-aarch64-linux-gnu" in caught.value.hint


def test_needed_versions_are_those_that_objdump_shows() -> None:
    """Against binutils, over a library of this machine."""
    if shutil.which("objdump") is None:
        pytest.skip("objdump is not installed: install the package binutils")
    library = Path(ctypes.util.find_library("stdc++") or "")
    places = [
        p / library for p in (Path("/lib/x86_64-linux-gnu"), Path("/usr/lib/x86_64-linux-gnu"))
    ]
    place = next((p for p in places if p.is_file()), None)
    if place is None:
        pytest.skip(f"{library} is not where it is expected")
    told = subprocess.run(["objdump", "-p", place], capture_output=True, text=True, check=True)
    lines = told.stdout[told.stdout.index("Version References") :].split()
    wanted = [tuple(map(int, x[6:].split("."))) for x in lines if x.startswith("GLIBC_2")]
    assert needed_versions(place.read_bytes())["GLIBC"] == max(wanted)


def test_what_is_newer_than_jetpack_6_is_told() -> None:
    fits = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 30), "CXXABI": (9,)}
    assert too_new(fits, JETPACK_6) == []
    assert too_new({"GLIBC": (2, 38)}, JETPACK_6) == ["GLIBC 2.38 is needed, 2.34 is there"]
    assert too_new({"GLIBCXX": (3, 4, 31)}, JETPACK_6)
    with pytest.raises(ValueError, match="no 64-bit ELF"):
        needed_versions(b"\x7fELF\x01\x01" + b"\0" * 60)


def test_embedded_code_is_found_and_described() -> None:
    """In the library that the plugin tests use: its cubins are paths of host libraries."""
    library = probe()
    content = library.path.read_bytes()
    cubins = host_kernels().cubins
    for cubin in cubins:
        assert content.count(cubin.content + b"\0") == 1
    library.library.selfdraft_describe.restype = ctypes.c_char_p
    told = json.loads(library.library.selfdraft_describe())
    assert told["tensorrt_headers"] == list(headers().version)
    assert told["cubins"] == [
        {
            "source": Path(cubin.name).name.split(".")[0],
            "arch": "sm_87",
            "cuda": 12060,
            "bytes": len(cubin.content),
        }
        for cubin in cubins
    ]


def test_a_compilers_error_is_told_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed: install the package g++")
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "kernels.hpp").write_text("namespace selfdraft { struct Cubin; }")
    monkeypatch.setattr(build_module, "SOURCES", str(sources))
    given = Headers(folder=tmp_path, version=(8, 5))
    with refused("g++ cannot compile the plugin library", "error", error=DeviceError):
        build_library(CUBINS, tmp_path / "lib.so", headers=given)
    assert not (tmp_path / "lib.so").exists()


def test_a_cross_build_that_jetpack_6_cannot_load_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too new a compiler shows in the versions of the symbols."""
    monkeypatch.setattr(build_module, "find_compiler", lambda host: "c++")
    monkeypatch.setattr(
        build_module, "_compile", lambda *arguments: Path(arguments[2]).write_bytes(b"library")
    )
    monkeypatch.setattr(build_module, "needed_versions", lambda content: {"GLIBC": (2, 38)})
    given = Headers(folder=tmp_path, version=(10, 14))
    with refused("JetPack 6 cannot load", "GLIBC 2.38", error=DeviceError):
        build_library(CUBINS, tmp_path / "lib.so", headers=given, host="aarch64")
    written = build_library(CUBINS, tmp_path / "lib.so", headers=given)
    assert written.bytes == 7 and written.record()["needs"] == {"GLIBC": [2, 38]}
    (tmp_path / "file").write_text("")
    with refused(str(tmp_path / "file"), error=ResourceError):
        build_library(CUBINS, tmp_path / "file" / "lib.so", headers=given)


@pytest.mark.slow
def test_the_library_for_a_board_loads_there(tmp_path: Path) -> None:
    """Cross-compiled, loaded by an emulated aarch64 with Debian 12's libraries."""
    for program, package in (
        ("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu"),
        ("qemu-aarch64", "qemu-user"),
    ):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: install the package {package}")
    library = build_library(CUBINS, tmp_path / "lib.so", headers=headers(), host="aarch64")
    assert library.needs["GLIBC"] <= (2, 34) and library.needs["GLIBCXX"] <= (3, 4, 30)
    found = parse_library(library.path.read_bytes())
    assert found is not None and found.machine == "aarch64"
    (tmp_path / "loader.cpp").write_text(LOADER)
    loader = tmp_path / "loader"
    compile_loader = ["aarch64-linux-gnu-g++", str(tmp_path / "loader.cpp"), "-o", str(loader)]
    subprocess.run(compile_loader, check=True)
    emulated = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", str(loader), str(library.path)]
    done = subprocess.run(emulated, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    count, _, told = done.stdout.partition(" ")
    assert count == "3", "a creator of each plugin"
    assert [c["source"] for c in json.loads(told)["cubins"]] == ["append", "int4_matmul"]


@pytest.mark.slow
def test_real_kernels_are_embedded_in_a_form_that_jetpack_6_takes(tmp_path: Path) -> None:
    """NVRTC 12.6's machine code, as `selfdraft doctor` finds it in the library (format 8 is CUDA 13's)."""
    pytest.importorskip("nvidia.cuda_nvrtc", reason="pip install 'selfdraft[kernels]'")
    build = build_kernels(kernel_sources(), toolchain=Nvrtc(), architectures=["sm_87"])
    library = build_library(build, tmp_path / "lib.so", headers=headers())
    content = library.path.read_bytes()
    found = parse_library(content)
    assert found is not None
    assert found.cubins == (ElfCubin(compute_capability=87, format=7),)
    assert all(cubin.content in content for cubin in build.cubins)


def test_an_elf_file_without_version_needs_needs_nothing() -> None:
    header = b"\x7fELF\x02\x01" + b"\0" * 34 + struct.pack("<Q", 0) + b"\0" * 10
    assert needed_versions(header + struct.pack("<HH", 64, 0) + b"\0" * 8) == {}
