"""docs/cli.md says what the commands say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "generate_cli_reference.py"


def test_command_reference_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate_cli_reference", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = SCRIPT.with_name("cli.md").read_text(encoding="utf-8")
    assert written == module.reference(), "run: python docs/generate_cli_reference.py"
