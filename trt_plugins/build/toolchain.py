"""What compiles kernels: the interface, and what came out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CXX_STANDARD = "--std=c++17"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """Machine code of one source for one architecture, and what ptxas said of it."""

    cubin: bytes
    log: str


class Toolchain(Protocol):
    """A CUDA compiler."""

    @property
    def name(self) -> str:
        """``nvcc`` or ``nvrtc``."""

    @property
    def version(self) -> str:
        """Release of the compiler, ``13.0``."""

    def compile(self, source: Path, *, arch: str, include: Sequence[Path]) -> Compiled:
        """Compile for ``arch`` (``sm_87``). Raises ``DeviceError`` with the compiler's error."""


def first_error(log: str) -> str:
    """The line of a compiler's output that tells what is wrong."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    wrong = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()]
    return (wrong or lines or ["no output"])[0]
