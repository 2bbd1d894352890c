"""docs/jetson.md: its program runs, and the options it names exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "jetson.md").read_text(encoding="utf-8")


def test_program_of_the_page_runs() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2


def test_options_of_the_set_up_exist() -> None:
    help_text = subprocess.run(
        ["bash", str(ROOT / "jetson" / "setup.sh"), "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    named = set(re.findall(r"setup\.sh (--[a-z-]+)|SETUP_OPTIONS=(--[a-z-]+)", PAGE))
    options = {option for pair in named for option in pair if option}
    assert {"--check", "--uninstall", "--cpu-onnxruntime"} <= options
    assert all(option in help_text for option in options)
