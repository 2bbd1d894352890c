"""Install the runtime for aarch64 into a folder, from wheels, and tell what it takes.

    python tests/arm64/install.py FOLDER --python 3.10 [--engine onnxruntime==1.23.2] [--max-mb 110]

Nothing is run: pip resolves and unpacks wheels of the other architecture on this machine. Its
conditions on the Python version are those of the interpreter it runs in: --pip names that one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PLATFORMS = (
    "manylinux_2_34_aarch64",  # JetPack 6 has glibc 2.35
    "manylinux_2_28_aarch64",
    "manylinux_2_27_aarch64",
    "manylinux_2_17_aarch64",
    "manylinux2014_aarch64",
)
SOURCES = ("src", "cli", "export", "jetson", "runtime", "trt_plugins")
SOURCES += ("pyproject.toml", "README.md", "LICENSE")
QUIET = ("-qq", "--no-compile", "--upgrade")
MB = 1_000_000


def runtime_requirements() -> list[str]:
    """What selfdraft itself asks for, without any extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return list(project["project"]["dependencies"])


def install(folder: Path, requirements: list[str], *, python: str, pip: str) -> None:
    """Unpack wheels for that Python on aarch64; fails where one does not exist."""
    command = ["install", *QUIET, "--only-binary=:all:", "--target", str(folder)]
    command += ["--implementation", "cp", "--python-version", python]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    _pip(*command, *requirements, interpreter=pip)


def install_sources(folder: Path) -> None:
    """selfdraft itself: pure Python, so any interpreter can build it.

    From a copy, since a build leaves its own folder among the sources.
    """
    with tempfile.TemporaryDirectory() as scratch:
        for name in SOURCES:
            source, copy = ROOT / name, Path(scratch) / name
            if source.is_dir():
                shutil.copytree(source, copy, symlinks=True)
            else:
                shutil.copy(source, copy)
        _pip("install", *QUIET, "--no-deps", "--target", str(folder), scratch)


def size_bytes(folder: Path) -> int:
    """Bytes of all files but compiled Python."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files if path.suffix != ".pyc")


def sizes_by_package(folder: Path) -> dict[str, int]:
    """The ten largest entries."""
    sizes = {
        entry.name: size_bytes(entry) if entry.is_dir() else entry.stat().st_size
        for entry in folder.iterdir()
    }
    return dict(sorted(sizes.items(), key=lambda item: -item[1])[:10])


def _pip(*arguments: str, interpreter: str = sys.executable) -> None:
    subprocess.run([interpreter, "-m", "pip", *arguments], check=True)


def main(arguments: list[str]) -> int:
    """Install, then print sizes as JSON; 1 when it is larger than allowed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", required=True)
    parser.add_argument("--engine", help="engine library to add; it does not count for the size")
    parser.add_argument("--pip", default=sys.executable, help="interpreter whose pip resolves")
    parser.add_argument("--max-mb", type=float, default=110)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        runtime = Path(scratch) / "runtime"
        install(runtime, runtime_requirements(), python=options.python, pip=options.pip)
        install_sources(runtime)
        size, largest = size_bytes(runtime), sizes_by_package(runtime)
    requirements = runtime_requirements() + ([options.engine] if options.engine else [])
    install(options.folder, requirements, python=options.python, pip=options.pip)
    install_sources(options.folder)
    record = {
        "python": options.python,
        "runtime_mb": round(size / MB, 1),
        "with_engine_mb": round(size_bytes(options.folder) / MB, 1),
        "largest_mb": {name: round(size / MB, 1) for name, size in largest.items()},
    }
    print(json.dumps(record))
    return int(size > options.max_mb * MB)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
