"""One JSON line for each measurement, with what it ran on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SCHEMA = "selfdraft-bench-1"
PACKAGES = ("selfdraft", "onnxruntime", "onnxruntime-genai", "numpy")


def record(name: str, figures: dict[str, Any], *, threads: int) -> dict[str, Any]:
    """``figures`` of benchmark ``name`` with commit, machine, versions and load."""
    return {
        "schema": SCHEMA,
        "name": name,
        **figures,
        "threads": threads,
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {package: _version(package) for package in PACKAGES},
        "load_1min": round(os.getloadavg()[0], 2),
    }


def write_records(records: list[dict[str, Any]], path: Path | None) -> None:
    """Append to ``path`` as JSON lines; None prints them."""
    lines = "".join(json.dumps(entry) + "\n" for entry in records)
    if path is None:
        print(lines, end="")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(lines)


def markdown_table(records: list[dict[str, Any]]) -> str:
    """Name, figure, wanted and verdict of every record that has a ``figure``."""
    rows = ["| benchmark | figure | wanted | met |", "|---|---|---|---|"]
    for entry in records:
        met = {True: "yes", False: "**no**", None: ""}[entry.get("met")]
        rows.append(f"| {entry['name']} | {entry['figure']} | {entry.get('wanted', '')} | {met} |")
    return "\n".join(rows) + "\n"


def _commit() -> str | None:
    root = Path(__file__).parent
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
