"""A ``.cu`` file as a shared library of the host, compiled once and kept by content."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

HEADERS = ("host/csrc/fibre.hpp", "host/csrc/machine.hpp", "host/csrc/intrinsics.hpp")
SHARED_HEADERS = "csrc"
FLAGS = (
    "-std=c++17",
    "-O1",
    "-march=native",
    # Products and sums round apart, whatever the machine.
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    # Each library keeps its own machine: names that are not hidden would be merged between them.
    "-fvisibility=hidden",
    "-fno-gnu-unique",
    "-fPIC",
    "-shared",
    "-x",
    "c++",
    "-DSELFDRAFT_HOST",
    "-Wall",
    "-Wno-unknown-pragmas",
)


class HostCompileError(Exception):
    """g++ is missing or refuses the source; the message holds what it printed."""


def plugins_folder() -> Path:
    """The folder ``trt_plugins`` of this installation."""
    return Path(str(files("selfdraft.trt_plugins")))


def compiler() -> str | None:
    """Path of g++, None where the machine has none."""
    return shutil.which("g++")


def build_library(
    source: Path, *, cache: Path, edits: Sequence[tuple[str, str]] = (), defines: Sequence[str] = ()
) -> Path:
    """The library of one kernel file, from ``cache`` where these very sources were compiled before.

    ``edits``: (text, replacement) pairs applied to the file and the headers that lie beside it,
    for mutation tests; each text must stand exactly once in exactly one of them. Raises
    ``HostCompileError``. Several processes may ask at the same time.
    """
    gxx = compiler()
    if gxx is None:
        raise HostCompileError("g++ is not installed: install the package g++")
    texts = _edited(_sources(source), edits)
    key = hashlib.sha256(repr((sorted(texts.items()), FLAGS, tuple(defines))).encode())
    folder = cache / f"{source.stem}-{key.hexdigest()[:20]}"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"{source.stem}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(gxx, source, texts, folder=folder, library=library, defines=defines)
    return library


def _sources(source: Path) -> dict[str, str]:
    """Every file that the kernel is made of, by its path relative to ``trt_plugins``."""
    root = plugins_folder()
    found = [source, *sorted(source.parent.glob("*.cuh"))]
    found += sorted((root / SHARED_HEADERS).glob("*.cuh")) + [root / name for name in HEADERS]
    return {_name(file): file.read_text() for file in found}


def _name(file: Path) -> str:
    """Relative to ``trt_plugins``; kernels of tests lie elsewhere and keep their name alone."""
    root = plugins_folder().resolve()
    resolved = file.resolve()
    if resolved.is_relative_to(root):
        return resolved.relative_to(root).as_posix()
    return f"csrc/{file.name}"


def _edited(texts: dict[str, str], edits: Sequence[tuple[str, str]]) -> dict[str, str]:
    for old, new in edits:
        holders = [name for name, text in texts.items() if old in text]
        count = sum(texts[name].count(old) for name in holders)
        if count != 1:
            raise ValueError(f"the text to edit stands {count} times in the sources: {old!r}")
        texts = {**texts, holders[0]: texts[holders[0]].replace(old, new)}
    return texts


def _compile(
    gxx: str,
    source: Path,
    texts: dict[str, str],
    *,
    folder: Path,
    library: Path,
    defines: Sequence[str],
) -> None:
    """Write the sources under ``folder`` as they lie in the project, and compile there."""
    for name, text in texts.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    unfinished = library.with_suffix(".tmp")
    options = [*FLAGS, *(f"-D{name}" for name in defines)]
    command = [gxx, *options, str(folder / _name(source)), "-o", str(unfinished)]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    if found.returncode:
        raise HostCompileError(f"g++ refuses {source.name}:\n{found.stderr[-4000:]}")
    os.replace(unfinished, library)


def kernel_names(source: Path) -> list[str]:
    """Names of the kernels that a file declares with ``SD_KERNEL``, in order."""
    return re.findall(r"^SD_KERNEL\((\w+),", source.read_text(), flags=re.MULTILINE)
