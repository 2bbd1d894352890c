"""NVRTC, CUDA's compiler as a library: no toolkit and no host compiler needed.

Functions: NVRTC documentation, "Basic Usage". Found as the library that the loader knows, or in the
package ``nvidia-cuda-nvrtc-cu12``.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from selfdraft.errors import DeviceError
from selfdraft.trt_plugins.build.toolchain import CXX_STANDARD, Compiled, first_error

PACKAGE = "nvidia.cuda_nvrtc"
INSTALL_HINT = "pip install 'nvidia-cuda-nvrtc-cu12==12.6.*', or use --compiler nvcc"


class Nvrtc:
    """The library given, else that of the Python package, else the system's.

    Raises ``DeviceError`` when there is none.
    """

    name = "nvrtc"

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or find_nvrtc()
        try:
            self._library = ctypes.CDLL(str(self.path))
        except OSError as error:
            raise DeviceError(f"NVRTC cannot be loaded: {error}", hint=INSTALL_HINT) from None
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def compile(self, source: Path, *, arch: str, include: Sequence[Path]) -> Compiled:
        """Compile for ``arch``. Raises ``DeviceError`` with the compiler's error."""
        options = [
            f"--gpu-architecture={arch}",
            CXX_STANDARD,
            "--ptxas-options=-v",
            "-default-device",
        ]
        options += [f"-I{path}" for path in (source.parent, *include)]
        program = ctypes.c_void_p()
        text, name = source.read_bytes(), source.name.encode()
        self._call("nvrtcCreateProgram", ctypes.byref(program), text, name, 0, None, None)
        try:
            encoded = (ctypes.c_char_p * len(options))(*(item.encode() for item in options))
            status = self._library.nvrtcCompileProgram(program, len(options), encoded)
            log = self._text(program, "nvrtcGetProgramLog").decode(errors="replace")
            if status:
                raise DeviceError(
                    f"NVRTC {self.version} cannot compile {source.name} for {arch}: "
                    f"{first_error(log)}",
                    hint="use NVRTC 12.6 or newer; -v shows the whole output",
                )
            return Compiled(cubin=self._text(program, "nvrtcGetCUBIN"), log=log)
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, function: str) -> bytes:
        """What ``function`` copies out, whose size ``<function>Size`` tells."""
        size = ctypes.c_size_t()
        self._call(f"{function}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(function, program, buffer)
        return buffer.raw if function == "nvrtcGetCUBIN" else buffer.value

    def _call(self, function: str, *arguments: object) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            raise DeviceError(f"{function} returned {status}", hint=INSTALL_HINT)


def find_nvrtc() -> Path:
    """Path or loader name of NVRTC. Raises ``DeviceError`` when there is none."""
    try:
        spec = importlib.util.find_spec(PACKAGE)
    except ModuleNotFoundError:
        spec = None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for library in sorted(Path(folder).glob("lib/libnvrtc.so.*")):
            return library
    known = ctypes.util.find_library("nvrtc")
    if known is None:
        raise DeviceError("NVRTC (libnvrtc.so) is not installed", hint=INSTALL_HINT)
    return Path(known)
