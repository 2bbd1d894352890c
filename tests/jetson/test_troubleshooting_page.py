"""docs/troubleshooting.md says what the doctor says, all of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from selfdraft.jetson.checks import CHECKS
from selfdraft.jetson.explanations import EXPLANATIONS
from selfdraft.jetson.kinds import KINDS

SCRIPT = Path(__file__).parents[2] / "docs" / "generate_troubleshooting.py"


@pytest.fixture(scope="module")
def module() -> Any:
    spec = importlib.util.spec_from_file_location("generate_troubleshooting", SCRIPT)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_page_is_up_to_date(module: Any) -> None:
    written = module.PAGE.read_text(encoding="utf-8")
    assert written == module.page(), "run: python docs/generate_troubleshooting.py"


def test_page_holds_every_check_message_and_kind(module: Any) -> None:
    text = module.page()
    for check in CHECKS:
        assert f"(`{check.name}`: " in text and check.mend in text
    for explanation in EXPLANATIONS:
        assert f"(`{explanation.name}`" in text and explanation.example in text
    for kind in KINDS:
        assert f"| {kind.number} | {kind.title} |" in text


def test_every_kind_without_a_check_gives_its_reason(module: Any) -> None:
    rows = [line for line in module.page().splitlines() if line.startswith("| ")]
    kinds = [row for row in rows if row.split("|")[1].strip().isdecimal()]
    assert len(kinds) == 33
    assert [row for row in kinds if ("check `" in row) == ("no check: " in row)] == []
    assert "no check: no state of the board and no message tells it" in kinds[30]
