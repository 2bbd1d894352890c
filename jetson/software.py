"""CUDA, TensorRT, Python and the plugin library: what is installed, and what this process sees."""

from __future__ import annotations

import json
import posixpath
import re

from selfdraft.jetson.device import (
    Binding,
    Cuda,
    Interpreter,
    KernelFile,
    PluginLibrary,
    TensorRt,
)
from selfdraft.jetson.elf import parse_cubin, parse_library
from selfdraft.jetson.release import parse_library_package, version_tuple
from selfdraft.jetson.system import System

CUDA_HOME = "/usr/local/cuda"
PLUGIN_VARIABLE = "SELFDRAFT_PLUGIN_PATH"
PLUGIN_NAME = "libselfdraft_plugins.so"
HOME_VARIABLE = "SELFDRAFT_HOME"
PACKAGES_THAT_MATTER = frozenset(
    {
        "numpy",
        "scipy",
        "onnxruntime",
        "onnxruntime-gpu",
        "pycuda",
        "torch",
        "tokenizers",
        "safetensors",
        "tensorrt",
    }
)
_LIBRARIES = "/usr/lib/*-linux-gnu/libnvinfer.so.*"
_BINDINGS = (
    "/usr/lib/python3*/dist-packages/tensorrt/__init__.py",
    "/usr/local/lib/python3*/dist-packages/tensorrt/__init__.py",
)
_METADATA = re.compile(r"([A-Za-z0-9_.]+)-([^-]+?)(?:-py[\d.]+)?\.(?:dist|egg)-info")
_PYTHON_FOLDER = re.compile(r"/python(3\.\d+)/")


def read_cuda(system: System) -> Cuda:
    """The toolkit below ``/usr/local/cuda``, or the newest beside it."""
    home = system.first(CUDA_HOME) or next(iter(system.glob("/usr/local/cuda-*")[::-1]), None)
    folders = system.environment.get("PATH", "").split(":")
    return Cuda(
        version=_cuda_version(system, home),
        home=home,
        nvcc=system.first(f"{home}/bin/nvcc") if home else None,
        nvcc_on_path=any(folder and system.exists(f"{folder}/nvcc") for folder in folders),
        header=next(iter(system.glob(f"{home}/targets/*/include/cuda.h")), None)
        or (system.first(f"{home}/include/cuda.h") if home else None),
    )


def _cuda_version(system: System, home: str | None) -> str | None:
    """From the toolkit's ``version.json``; else from the folder's name."""
    if home is None:
        return None
    try:
        version = json.loads(system.text(f"{home}/version.json") or "")["cuda"]["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = re.search(r"cuda-([\d.]+)$", system.link(home) or home)
        return found.group(1) if found else None
    return version if isinstance(version, str) else None


def read_tensorrt(system: System, packages: dict[str, str]) -> TensorRt:
    """Library, package and bindings; the binding that this interpreter would import."""
    libraries = system.glob(_LIBRARIES)
    library = max(libraries, key=lambda path: (_library_version(path), path), default=None)
    named = [(name, v) for name, v in packages.items() if re.fullmatch(r"libnvinfer\d+", name)]
    package = max(named, key=lambda item: version_tuple(item[1]), default=None)
    from_file = ".".join(map(str, _library_version(library))) if library else None
    folders = {posixpath.dirname(path) for pattern in _BINDINGS for path in system.glob(pattern)}
    visible = _visible_binding(system)
    if visible is not None:
        folders.add(visible.folder)
    return TensorRt(
        version=parse_library_package(package[1]).version if package else from_file,
        library=library,
        package=f"{package[0]} {package[1]}" if package else None,
        bindings=tuple(_binding(system, folder) for folder in sorted(folders)),
        visible=visible,
    )


def _library_version(path: str) -> tuple[int, ...]:
    return version_tuple(path.partition(".so.")[2])


def _visible_binding(system: System) -> Binding | None:
    for folder in system.python.search_path:
        if system.exists(f"{folder}/tensorrt/__init__.py"):
            return _binding(system, f"{folder}/tensorrt")
    return None


def _binding(system: System, folder: str) -> Binding:
    python = _PYTHON_FOLDER.search(folder)
    beside = installed_in(system, posixpath.dirname(folder))
    return Binding(
        folder=folder,
        python=python.group(1) if python else None,
        version=beside.get("tensorrt"),
    )


def installed_in(system: System, folder: str) -> dict[str, str]:
    """``{package: version}`` by the metadata folders that lie in ``folder``."""
    found: dict[str, str] = {}
    for path in (*system.glob(f"{folder}/*.dist-info"), *system.glob(f"{folder}/*.egg-info")):
        match = _METADATA.fullmatch(posixpath.basename(path))
        if match is not None:
            found[match.group(1).replace("_", "-").lower()] = match.group(2)
    return found


def read_interpreter(system: System) -> Interpreter:
    """The interpreter and those of its packages that matter; the first on its path counts."""
    python = system.python
    config = system.text(f"{python.prefix}/pyvenv.cfg") or ""
    found: dict[str, str] = {}
    for folder in python.search_path:
        for name, version in installed_in(system, folder).items():
            if name in PACKAGES_THAT_MATTER:
                found.setdefault(name, version)
    shares = re.search(
        r"^include-system-site-packages\s*=\s*true\s*$", config, re.MULTILINE | re.IGNORECASE
    )
    in_venv = python.prefix != python.base_prefix
    return Interpreter(
        version=python.version,
        executable=python.executable,
        prefix=python.prefix,
        in_venv=in_venv,
        system_site_packages=not in_venv or shares is not None,
        packages=tuple(sorted(found.items())),
    )


def read_plugins(system: System) -> PluginLibrary | None:
    """The plugin library that ``SELFDRAFT_PLUGIN_PATH`` names, else the one built into
    selfdraft's own folder; ``None`` where neither is there."""
    named = system.environment.get(PLUGIN_VARIABLE)
    path = named or f"{_own_folder(system)}/plugins/{PLUGIN_NAME}"
    if not named and not system.exists(path):
        return None
    try:
        library = parse_library(system.path(path).read_bytes())
    except OSError:
        library = None
    return PluginLibrary(
        path=path,
        exists=library is not None,
        absolute=path.startswith("/"),
        machine=library.machine if library else None,
        cubins=tuple((c.compute_capability, c.format) for c in library.cubins) if library else (),
    )


def read_kernels(system: System) -> tuple[KernelFile, ...]:
    """The kernels that ``jetson/setup.sh`` has compiled into selfdraft's own folder."""
    paths = system.glob(f"{_own_folder(system)}/kernels/*/*.cubin")
    return tuple(_kernel_file(system, path) for path in paths)


def _kernel_file(system: System, path: str) -> KernelFile:
    try:
        cubin = parse_cubin(system.path(path).read_bytes())
    except OSError:
        cubin = None
    return KernelFile(
        path=path,
        compute_capability=cubin.compute_capability if cubin else None,
        format=cubin.format if cubin else None,
    )


def _own_folder(system: System) -> str:
    home = system.environment.get("HOME", "/root")
    return system.environment.get(HOME_VARIABLE) or f"{home}/.cache/selfdraft"
