"""Expected outputs kept as files; ``python tests/jetson/write_golden.py`` writes them anew."""

from __future__ import annotations

from pathlib import Path

from selfdraft.cli.console import table
from selfdraft.cli.doctor_text import device_rows, diagnosis_lines
from selfdraft.jetson.checks import CHECKS
from selfdraft.jetson.device import Device
from selfdraft.jetson.doctor import diagnose

FOLDER = Path(__file__).parents[1] / "jetson" / "golden"


def assert_golden(name: str, text: str) -> None:
    """``text`` is what the file ``name`` holds."""
    path = FOLDER / name
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    assert text == expected, f"differs from {path}; after a wanted change: write_golden.py"


def write_golden(name: str, text: str) -> None:
    """Make ``text`` the expected output."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / name).write_text(text, encoding="utf-8")


def doctor_text(device: Device) -> str:
    """What ``selfdraft doctor --all`` prints about the device."""
    lines = diagnosis_lines(diagnose(device, CHECKS), verbose=True)
    return "\n".join([table(device_rows(device)), *lines]) + "\n"
