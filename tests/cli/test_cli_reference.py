"""docs/cli.md says what the commands say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from selfdraft.cli.registry import COMMANDS, load_command

SCRIPT = Path(__file__).parents[2] / "docs" / "generate_cli_reference.py"


def test_command_reference_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate_cli_reference", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = SCRIPT.with_name("cli.md").read_text(encoding="utf-8")
    assert written == module.reference(), "run: python docs/generate_cli_reference.py"


def test_options_that_pages_name_exist() -> None:
    root = SCRIPT.parents[1]
    known = {
        name: {"--help", *(word for param in load_command(name).params for word in param.opts)}
        for name in COMMANDS
    }
    two_words = [name for name in COMMANDS if " " in name]
    names = "|".join([*two_words, "[a-z]+"])
    wrong, seen = [], 0
    for page in (root / "README.md", *sorted(root.glob("*/*.md"))):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for command, rest in re.findall(rf"\bselfdraft ({names})( [^\n`#|]*)", text):
            for option in re.findall(r"(?<=\s)--[a-z][a-z0-9-]*", rest):
                seen += command in known
                if command in known and option not in known[command]:
                    wrong.append((page.name, command, option))
    assert seen > 80 and wrong == []
