"""docs/planner.md states the errors that the calibration has."""

from __future__ import annotations

import importlib.util
from pathlib import Path

GENERATOR = Path(__file__).parents[2] / "docs" / "generate_planner_tables.py"


def test_the_page_states_the_errors_of_this_calibration() -> None:
    spec = importlib.util.spec_from_file_location("planner_tables", GENERATOR)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(["--check"]) == 0, "run: python docs/generate_planner_tables.py"
