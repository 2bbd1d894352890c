"""nvcc of a CUDA toolkit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from selfdraft.errors import DeviceError
from selfdraft.trt_plugins.build.toolchain import CXX_STANDARD, Compiled, first_error

TOOLKIT_PATH = Path("/usr/local/cuda/bin/nvcc")
"""JetPack installs it here and does not put it on PATH."""
INSTALL_HINT = (
    "install the CUDA toolkit (JetPack: cuda-toolkit; then PATH needs /usr/local/cuda/bin), "
    "name it with --nvcc, or use --compiler nvrtc"
)


class Nvcc:
    """The nvcc given, else that on PATH, else that of the toolkit's usual folder.

    Raises ``DeviceError`` when there is none, or it does not run.
    """

    name = "nvcc"

    def __init__(self, path: Path | None = None) -> None:
        self.path = find_nvcc(path)
        done = self._run(["--version"])
        found = re.search(r"release (\d+\.\d+)", done.stdout)
        if done.returncode or found is None:
            raise DeviceError(
                f"{self.path} --version fails: {first_error(done.stderr)}", hint=INSTALL_HINT
            )
        self.version = found[1]

    def compile(self, source: Path, *, arch: str, include: Sequence[Path]) -> Compiled:
        """Compile for ``arch``. Raises ``DeviceError`` with the compiler's error."""
        with tempfile.TemporaryDirectory() as folder:
            cubin = Path(folder) / "out.cubin"
            options = ["-cubin", f"-arch={arch}", CXX_STANDARD, "-Xptxas", "-v"]
            options += [f"-I{path}" for path in include]
            done = self._run([*options, "-o", str(cubin), str(source)])
            log = done.stdout + done.stderr
            if done.returncode:
                raise DeviceError(
                    f"nvcc {self.version} cannot compile {source.name} for {arch}: "
                    f"{first_error(log)}",
                    hint="use CUDA 12.6 or newer; -v shows the whole output",
                )
            return Compiled(cubin=cubin.read_bytes(), log=log)

    def _run(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [str(self.path), *arguments], capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise DeviceError(
                f"{self.path} cannot be run: {error.strerror}", hint=INSTALL_HINT
            ) from None


def find_nvcc(given: Path | None = None) -> Path:
    """Path of nvcc. Raises ``DeviceError`` when there is none."""
    if given is not None:
        if not given.is_file():
            raise DeviceError(f"{given} is no file", hint="correct --nvcc, or leave it out")
        return given
    found = shutil.which("nvcc")
    if found is not None:
        return Path(found)
    if os.access(TOOLKIT_PATH, os.X_OK):
        return TOOLKIT_PATH
    raise DeviceError(f"nvcc is neither on PATH nor at {TOOLKIT_PATH}", hint=INSTALL_HINT)
