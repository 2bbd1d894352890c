"""``selfdraft plugins``: compile the CUDA kernels and the TensorRT plugin library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfdraft.cli.console import bytes_text, print_json, say, stage_progress, table
from selfdraft.cli.options import JsonOption
from selfdraft.errors import ConfigError, VerificationError
from selfdraft.strict import closest_hint

if TYPE_CHECKING:
    from selfdraft.trt_plugins.build.run import Build
    from selfdraft.trt_plugins.build.toolchain import Toolchain
    from selfdraft.trt_plugins.library.build import Host, PluginLibrary
    from selfdraft.trt_plugins.library.headers import Headers

SCHEMA = "selfdraft.plugins/1"
ACTIONS = ("build",)
COMPILERS = ("nvcc", "nvrtc")
HOSTS: tuple[Host, ...] = ("native", "aarch64")
HEADER = ("kernel", "arch", "registers", "shared", "spills", "blocks/SM", "occupancy", "limits")


def command(
    action: Annotated[
        str, typer.Argument(metavar="|".join(ACTIONS), help="What to do.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder for the compiled kernels.",
            show_default="none: only report",
        ),
    ] = None,
    arch: Annotated[
        list[str] | None,
        typer.Option(
            "--arch",
            metavar="sm_87|sm_80|sm_90",
            help="Architecture: Orin is sm_87, the others are test machines. May be repeated.",
            show_default="sm_87",
        ),
    ] = None,
    compiler: Annotated[
        str,
        typer.Option(
            "--compiler",
            envvar="SELFDRAFT_CUDA_COMPILER",
            metavar="nvcc|nvrtc",
            help="CUDA compiler: the toolkit's, or the library of a Python package.",
        ),
    ] = "nvcc",
    nvcc: Annotated[
        Path | None,
        typer.Option(
            "--nvcc",
            envvar="SELFDRAFT_NVCC",
            metavar="FILE",
            help="nvcc to use.",
            show_default="that on PATH, else /usr/local/cuda/bin/nvcc",
        ),
    ] = None,
    library: Annotated[
        Path | None,
        typer.Option(
            "--library",
            metavar="FILE",
            help="Plugin library for TensorRT to write, the kernels inside.",
            show_default="none",
        ),
    ] = None,
    install: Annotated[
        bool,
        typer.Option(
            "--install",
            help="Write the plugin library where engines look for it, in selfdraft's own folder.",
        ),
    ] = False,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="|".join(HOSTS),
            help="Processor that the library is for: this machine's, or a board's from elsewhere.",
        ),
    ] = "native",
    tensorrt_include: Annotated[
        Path | None,
        typer.Option(
            "--tensorrt-include",
            metavar="FOLDER",
            help="TensorRT's C++ headers.",
            show_default="the system's, else those of the package kernel-lens",
        ),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Compile the CUDA kernels, and the TensorRT plugin library with them inside.

    Reports registers, shared memory, spills and occupancy. Ends with exit code 6 when a kernel breaks
    a limit (kernels.json of its operator); nothing is written then. No GPU is needed.

    \b
    Examples:
      selfdraft plugins build --arch sm_87 -o out/kernels
      selfdraft plugins build --install
      selfdraft plugins build --compiler nvrtc --host aarch64 --library out/libselfdraft_plugins.so
    """
    from selfdraft.trt_plugins.build.kernel_list import kernel_sources
    from selfdraft.trt_plugins.build.run import build_kernels, write_cubins

    _check_choice("action", action, ACTIONS)
    _check_choice("--compiler", compiler, COMPILERS)
    library = _library_path(library, install)
    host = _checked_host(host, library, tensorrt_include)
    headers = None if library is None else _ready(host, tensorrt_include)
    with stage_progress(quiet=json_output) as on_progress:
        build = build_kernels(
            kernel_sources(),
            toolchain=_toolchain(compiler, nvcc),
            architectures=tuple(dict.fromkeys(arch or ["sm_87"])),
            on_progress=on_progress,
        )
    broken = build.broken_limits
    written = output is not None and not broken
    if output is not None and not broken:
        write_cubins(build, output)
    made = None
    if library is not None and headers is not None and not broken:
        from selfdraft.trt_plugins.library.build import build_library

        made = build_library(build, library, headers=headers, host=host)
    if json_output:
        record = {
            "schema": SCHEMA,
            **build.record(),
            "output": str(output) if written else None,
            "library": made.record() if made else None,
            "broken_limits": broken,
        }
        print_json(record)
    else:
        _print_report(build, output if written else None)
        if made is not None:
            _print_library(made)
    if broken:
        raise VerificationError(
            f"{len(broken)} limits are broken: {broken[0]}",
            hint="make the kernel smaller, or change its limits and say why",
        )


def _check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(
            f"{name} is {value!r}{closest_hint(value, known)}",
            hint=f"choose one of: {', '.join(known)}",
        )


def _library_path(given: Path | None, install: bool) -> Path | None:
    if not install:
        return given
    if given is not None:
        raise ConfigError(
            f"--install and --library {given} name two places", hint="leave one of them out"
        )
    from selfdraft.trt_plugins.library.build import installed_path

    return installed_path()


def _checked_host(host: str, library: Path | None, include: Path | None) -> Host:
    """``host`` as one that is known; options of the library need a library."""
    _check_choice("--host", host, HOSTS)
    for name, given in (("--host", host != "native"), ("--tensorrt-include", include is not None)):
        if given and library is None:
            raise ConfigError(
                f"{name} has no meaning without --library",
                hint="say where the library is to go: --library FILE, or --install",
            )
    return "aarch64" if host == "aarch64" else "native"


def _ready(host: Host, include: Path | None) -> Headers:
    """TensorRT's headers, once the C++ compiler is known to be there: kernels take a minute."""
    from selfdraft.trt_plugins.library.build import find_compiler
    from selfdraft.trt_plugins.library.headers import find_headers

    find_compiler(host)
    return find_headers(include)


def _print_library(library: PluginLibrary) -> None:
    major, minor = library.headers.version
    needs = ", ".join(
        f"{family} {'.'.join(map(str, version))}" for family, version in library.needs.items()
    )
    say(f"wrote {library.path} ({bytes_text(library.bytes)}, {library.host})")
    say(f"TensorRT headers {major}.{minor} from {library.headers.folder}; needs {needs}")
    say(f"sha256 {library.sha256}")


def _toolchain(compiler: str, nvcc: Path | None) -> Toolchain:
    if compiler == "nvcc":
        from selfdraft.trt_plugins.build.nvcc import Nvcc

        return Nvcc(nvcc)
    if nvcc is not None:
        raise ConfigError(
            "--nvcc has no meaning with --compiler nvrtc", hint="leave one of them out"
        )
    from selfdraft.trt_plugins.build.nvrtc import Nvrtc

    return Nvrtc()


def _print_report(build: Build, output: Path | None) -> None:
    say(f"{build.compiler} {build.compiler_version}")
    say(table([_row(kernel) for kernel in build.kernels], header=HEADER))
    for line in build.broken_limits:
        say(f"broken limit: {line}")
    reasons = {kernel.kernel: kernel.limits.reason for kernel in build.kernels}
    for name, reason in reasons.items():
        if reason:
            say(f"{name}: {reason}")
    if output is not None:
        for cubin in build.cubins:
            say(f"wrote {output / cubin.name} ({bytes_text(len(cubin.content))})")


def _row(kernel: Any) -> tuple[object, ...]:
    return (
        kernel.kernel,
        kernel.arch,
        kernel.usage.registers,
        kernel.shared_bytes,
        kernel.usage.spill_store_bytes + kernel.usage.spill_load_bytes,
        kernel.blocks_per_sm,
        f"{kernel.occupancy:.0%}",
        "broken" if kernel.violations else "kept",
    )
