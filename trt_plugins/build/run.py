"""Compile every kernel for some architectures; write machine code and report."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from selfdraft.errors import ConfigError, DeviceError, ResourceError
from selfdraft.strict import closest_hint
from selfdraft.trt_plugins.build.kernel_list import SourceFile, plugin_folder
from selfdraft.trt_plugins.build.occupancy import MULTIPROCESSORS
from selfdraft.trt_plugins.build.ptxas_log import kernel_usage
from selfdraft.trt_plugins.build.report import KernelReport, kernel_report
from selfdraft.trt_plugins.build.toolchain import Compiled, Toolchain

log = logging.getLogger(__name__)

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cubin:
    """Machine code of one source for one architecture."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Everything one run compiled."""

    compiler: str
    compiler_version: str
    cubins: tuple[Cubin, ...]
    kernels: tuple[KernelReport, ...]

    def record(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            "compiler": {"name": self.compiler, "version": self.compiler_version},
            "kernels": [asdict(kernel) for kernel in self.kernels],
            "files": {
                cubin.name: {
                    "bytes": len(cubin.content),
                    "sha256": hashlib.sha256(cubin.content).hexdigest(),
                }
                for cubin in self.cubins
            },
        }

    @property
    def broken_limits(self) -> list[str]:
        """A line for each limit that a kernel breaks."""
        return [
            f"{kernel.kernel} on {kernel.arch}: {found}"
            for kernel in self.kernels
            for found in kernel.violations
        ]


def build_kernels(
    sources: Sequence[SourceFile],
    *,
    toolchain: Toolchain,
    architectures: Sequence[str],
    on_progress: OnProgress | None = None,
) -> Build:
    """Compile ``sources`` for each architecture. Raises ``ConfigError``, ``DeviceError``."""
    for arch in architectures:
        if arch not in MULTIPROCESSORS:
            raise ConfigError(
                f"unknown architecture {arch!r}{closest_hint(arch, MULTIPROCESSORS)}",
                hint=f"choose among: {', '.join(MULTIPROCESSORS)}",
            )
    jobs = [(source, arch) for arch in architectures for source in sources]
    cubins: list[Cubin] = []
    kernels: list[KernelReport] = []
    for done, (source, arch) in enumerate(jobs):
        if on_progress is not None:
            on_progress(f"{source.path.name} for {arch}", done, len(jobs))
        compiled = toolchain.compile(source.path, arch=arch, include=[plugin_folder()])
        log.info("%s for %s: %s", source.path.name, arch, compiled.log)
        cubins.append(
            Cubin(name=f"{source.op}/{source.path.stem}.{arch}.cubin", content=compiled.cubin)
        )
        kernels += _reports(source, compiled, arch)
    return Build(
        compiler=toolchain.name,
        compiler_version=toolchain.version,
        cubins=tuple(cubins),
        kernels=tuple(kernels),
    )


def write_cubins(build: Build, folder: Path) -> None:
    """Write the machine code below ``folder``. Raises ``ResourceError``."""
    for cubin in build.cubins:
        path = folder / cubin.name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            partial.write_bytes(cubin.content)
            partial.replace(path)
        except OSError as error:
            raise ResourceError(
                f"{path} cannot be written: {error.strerror}", hint="choose another --output"
            ) from None


def _reports(source: SourceFile, compiled: Compiled, arch: str) -> list[KernelReport]:
    try:
        usage = kernel_usage(compiled.log)
    except ValueError as error:
        raise DeviceError(f"{source.path.name}: {error}", hint="run it again with -v") from None
    if usage.keys() != source.kernels.keys():
        differing = ", ".join(sorted(usage.keys() ^ source.kernels.keys()))
        raise DeviceError(
            f"{source.path.name} and its kernels.json disagree on: {differing}",
            hint="list every kernel of the source with its limits, and no other",
        )
    return [
        kernel_report(source.op, name, arch=arch, usage=usage[name], limits=limits)
        for name, limits in source.kernels.items()
    ]
