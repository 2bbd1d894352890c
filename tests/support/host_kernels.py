"""Kernel files as host libraries for tests: compiled once, shared by workers and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from selfdraft.trt_plugins.host.build import build_library, compiler, plugins_folder
from selfdraft.trt_plugins.host.launch import HostLibrary

CACHE = Path(__file__).parents[2] / "build" / "host_kernels"
TRIAL = Path(__file__).parent / "kernels" / "trial.cu"


def kernel_file(name: str) -> Path:
    """A kernel file by its path below ``trt_plugins``."""
    return plugins_folder() / name


@cache
def host_library(
    source: Path, edits: Sequence[tuple[str, str]] = (), defines: Sequence[str] = ()
) -> HostLibrary:
    """The file compiled for the host; skips the test where g++ is missing. ``edits``: tuples."""
    if compiler() is None:
        pytest.skip("g++ is not installed")
    return HostLibrary(build_library(source, cache=CACHE, edits=edits, defines=defines))
