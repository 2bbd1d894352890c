"""Compile the plugin library: C++ against TensorRT's headers, kernels embedded, nothing linked.

It opens CUDA when the first kernel is loaded and uses no symbol of TensorRT's, so it loads in any process
and serves every TensorRT from 10.3 on.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from selfdraft.errors import DeviceError, ResourceError
from selfdraft.trt_plugins.build.kernel_list import plugin_folder
from selfdraft.trt_plugins.build.run import Build
from selfdraft.trt_plugins.build.toolchain import first_error
from selfdraft.trt_plugins.library.headers import Headers
from selfdraft.trt_plugins.library.needs import JETPACK_6, Version, needed_versions, too_new

LIBRARY_NAME = "libselfdraft_plugins.so"
HOME_VARIABLE = "SELFDRAFT_HOME"
Host = Literal["native", "aarch64"]
HOSTS: tuple[Host, ...] = ("native", "aarch64")
COMPILERS: dict[Host, str] = {"native": "g++", "aarch64": "aarch64-linux-gnu-g++"}
INSTALL = {
    "native": "sudo apt install g++",
    "aarch64": "sudo apt install g++-aarch64-linux-gnu, or build on the board",
}
FLAGS = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    # TensorRT's own symbols are used through virtual methods only.
    "-Wl,--no-undefined",
)
SOURCES = "library/csrc"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginLibrary:
    """A library that was written."""

    path: Path
    bytes: int
    sha256: str
    host: Host
    headers: Headers
    needs: dict[str, Version]

    def record(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            "path": str(self.path),
            "bytes": self.bytes,
            "sha256": self.sha256,
            "host": self.host,
            "tensorrt_headers": list(self.headers.version),
            "needs": {family: list(version) for family, version in self.needs.items()},
        }


def installed_path() -> Path:
    """Where engines look for the library unless ``SELFDRAFT_PLUGIN_PATH`` names another."""
    home = os.environ.get(HOME_VARIABLE) or Path.home() / ".cache" / "selfdraft"
    return Path(home) / "plugins" / LIBRARY_NAME


def find_compiler(host: Host) -> str:
    """Path of the C++ compiler for ``host``. Raises ``DeviceError`` where it is missing."""
    found = shutil.which(COMPILERS[host])
    if found is None:
        raise DeviceError(f"{COMPILERS[host]} is not installed", hint=INSTALL[host])
    return found


def build_library(
    build: Build,
    output: Path,
    *,
    headers: Headers,
    host: Host = "native",
    defines: Sequence[str] = (),
) -> PluginLibrary:
    """Compile the library with the kernels of ``build`` embedded; it appears whole or not at all.

    Raises ``DeviceError`` for a missing compiler, an error of it, or a cross-build that JetPack 6 could
    not load; ``ResourceError`` where it cannot be written.
    """
    compiler = find_compiler(host)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        compiled = work / LIBRARY_NAME
        _compile(compiler, _embedded(build, work), compiled, headers, defines)
        content = compiled.read_bytes()
    needs = needed_versions(content)
    lacking = too_new(needs, JETPACK_6) if host == "aarch64" else []
    if lacking:
        raise DeviceError(
            f"{COMPILERS[host]} made a library that JetPack 6 cannot load: {lacking[0]}",
            hint="use the compiler of Debian 12 or Ubuntu 22.04, or build on the board",
        )
    _write(output, content)
    return PluginLibrary(
        path=output,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        host=host,
        headers=headers,
        needs=needs,
    )


def _embedded(build: Build, work: Path) -> Path:
    """A C++ file that holds the machine code; the assembler includes it as it is."""
    major, minor = (int(part) for part in build.compiler_version.split(".")[:2])
    cuda = 1000 * major + 10 * minor
    blocks, entries = [], []
    for index, cubin in enumerate(build.cubins):
        file = work / f"{index}.cubin"
        file.write_bytes(cubin.content)
        stem, arch, _ = Path(cubin.name).name.split(".")
        blocks.append(
            f'asm(".section .rodata\\n.balign 64\\ncubin_{index}:\\n.incbin \\"{file}\\"\\n'
            f'.byte 0\\n.previous\\n");\n'
            f'extern "C" __attribute__((visibility("hidden"))) const unsigned char cubin_{index}[];'
        )
        number = arch.removeprefix("sm_")
        entries.append(f'  {{"{stem}", {number}, {cuda}, cubin_{index}, {len(cubin.content)}}},')
    source = work / "cubins.cpp"
    source.write_text(
        '#include "kernels.hpp"\n\n'
        + "\n".join(blocks)
        + "\n\nnamespace selfdraft {\nconst Cubin cubins[] = {\n"
        + "\n".join(entries)
        + f"\n}};\nconst int num_cubins = {len(entries)};\n}}  // namespace selfdraft\n"
    )
    return source


def _compile(
    compiler: str, cubins: Path, output: Path, headers: Headers, defines: Sequence[str]
) -> None:
    sources = plugin_folder() / SOURCES
    command = [compiler, *FLAGS, *(f"-D{name}" for name in defines)]
    command += [f"-I{sources / 'compat'}", f"-I{sources}"]
    # TensorRT's headers warn of what they deprecate themselves.
    command += ["-isystem", str(headers.folder)]
    command += [*map(str, sorted(sources.glob("*.cpp"))), str(cubins), "-o", str(output), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DeviceError(
            f"{Path(compiler).name} cannot compile the plugin library: {first_error(done.stderr)}",
            hint="its TensorRT headers must be of 10.3 or newer (--tensorrt-include)",
        )


def _write(output: Path, content: bytes) -> None:
    partial = output.with_name(f"{output.name}.partial-{os.getpid()}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        partial.chmod(0o755)
        partial.replace(output)
    except OSError as error:
        raise ResourceError(
            f"{output} cannot be written: {error.strerror}", hint="choose another --library"
        ) from None
