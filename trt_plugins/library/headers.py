"""TensorRT's C++ headers: where they may lie. They are NVIDIA's and no part of this project."""

from __future__ import annotations

import importlib.util
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from selfdraft.errors import DeviceError

HEADER = "NvInferRuntime.h"
VERSION_HEADER = "NvInferVersion.h"
PACKAGE = "kernel_lens"
PACKAGE_FOLDER = "include/tensorrt"
HINT = (
    "on a board: sudo apt install libnvinfer-headers-dev; elsewhere: pip install --no-deps "
    "kernel-lens==2.0.1, or name their folder with --tensorrt-include"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Headers:
    """A folder with TensorRT's headers, and their version."""

    folder: Path
    version: tuple[int, int]


def find_headers(given: Path | None = None) -> Headers:
    """The folder given, else the system's, else that of the package ``kernel-lens``.

    Raises ``DeviceError`` where there is none.
    """
    if given is not None:
        if not (given / HEADER).is_file():
            raise DeviceError(f"{given} has no {HEADER}", hint="correct --tensorrt-include")
        return Headers(folder=given, version=_version(given))
    for folder in (*_system_folders(), *_package_folders()):
        if (folder / HEADER).is_file():
            return Headers(folder=folder, version=_version(folder))
    raise DeviceError("TensorRT's headers (NvInferRuntime.h) were not found", hint=HINT)


def _system_folders() -> list[Path]:
    include = Path("/usr/include")
    return [
        include / f"{platform.machine()}-linux-gnu",
        include,
        Path("/usr/local/tensorrt/include"),
    ]


def _package_folders() -> list[Path]:
    spec = importlib.util.find_spec(PACKAGE)
    places = (spec.submodule_search_locations or ()) if spec else ()
    return [Path(place) / PACKAGE_FOLDER for place in places]


def _version(folder: Path) -> tuple[int, int]:
    """Major and minor: as numbers, or (from 10.14 on) through a second macro."""
    text = (folder / VERSION_HEADER).read_text(encoding="utf-8", errors="replace")
    found = {}
    for part in ("MAJOR", "MINOR"):
        number = re.search(rf"#define (?:NV_TENSORRT_{part}|TRT_{part}_ENTERPRISE) (\d+)", text)
        if number is None:
            raise DeviceError(f"{folder / VERSION_HEADER} names no version", hint=HINT)
        found[part] = int(number[1])
    return found["MAJOR"], found["MINOR"]
