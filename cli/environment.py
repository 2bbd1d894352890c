"""Where a measurement ran: versions, machine, commit. What is not known is ``None``."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import selfdraft


def environment_record() -> dict[str, Any]:
    """Facts for the head of every benchmark line."""
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "selfdraft": selfdraft.__version__,
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": _git_dirty(),
        "python": platform.python_version(),
        "numpy": _version("numpy"),
        "onnxruntime": _version("onnxruntime"),
        "tensorrt": None,
        "cuda": None,
        "l4t": None,
        "device": platform.machine(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "power_mode": None,
        "clocks_locked": None,
    }


def bundle_sha256(bundle: Path) -> str:
    """Identity of a bundle: the hash of its manifest, which holds the hashes of its files."""
    from selfdraft.manifest import MANIFEST_NAME

    return hashlib.sha256((bundle / MANIFEST_NAME).read_bytes()).hexdigest()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Output of git in the source checkout; ``None`` for an installed package."""
    root = Path(selfdraft.__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _git_dirty() -> bool | None:
    status = _git("status", "--porcelain", "--untracked-files=no")
    return None if status is None else bool(status)


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or None


def program_name() -> str:
    """What to type to run this program again: its name where the shell finds it, else its path."""
    own = Path(sys.executable).with_name("selfdraft")
    found = shutil.which("selfdraft")
    if found is not None and Path(found) == own:
        return "selfdraft"
    if not own.exists():
        return f"{sys.executable} -m selfdraft"
    here = Path.cwd()
    return str(own.relative_to(here)) if own.is_relative_to(here) else str(own)
