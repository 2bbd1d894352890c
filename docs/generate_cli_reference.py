"""Writes docs/cli.md from the commands themselves, so that both say the same.

Usage: ``python docs/generate_cli_reference.py`` (``--check`` only compares).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from selfdraft.cli.help_groups import OTHERS, section_of
from selfdraft.cli.main import app
from selfdraft.cli.registry import COMMANDS, load_command

REFERENCE = Path(__file__).with_name("cli.md")
HEAD = """\
# Command reference

Written by docs/generate_cli_reference.py; do not edit.

Results go to stdout, everything else to stderr. Options come from, in this order: the command
line, the environment, the file named by `--config` or `SELFDRAFT_CONFIG`, the default. That file
is TOML; a table for each command, options for all commands on top. Drafts, seed and task of the
environment or the file are left out where a command has no use for them (beam search, `eval needle`);
on the command line they are refused there.

```toml
threads = 2

[generate]
max-tokens = 200
stop-token = ["<|im_end|>"]
```

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | unexpected failure (`--debug` shows the traceback) |
| 2 | an option, a request or a checkpoint is wrong |
| 3 | a bundle does not match what it says, or where it runs |
| 4 | memory, disk or context space is short, or a path cannot be written |
| 5 | the device or its engine library is missing or fails |
| 6 | a check ran, and its result is not the expected one |
| 130 | ended by Ctrl-C |
| 141 | the reader of stdout went away |

An error is two lines on stderr, `error: …` and `hint: …`. `selfdraft --install-completion` sets up
the completion of commands and options in bash, zsh, fish and PowerShell.
"""


def reference() -> str:
    """The whole page."""
    root = typer.main.get_command(app)
    sections = [HEAD, _section("selfdraft", root)]
    sections += [_section(f"selfdraft {name}", load_command(name)) for name in COMMANDS]
    return "\n".join(sections)


def _section(title: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    lines = [f"## {title}", "", _help_text(command.help), ""]
    if arguments:
        lines += ["| argument | |", "|---|---|"]
        lines += [f"| `{p.metavar}` | {_described(p)} |" for p in arguments]
        lines.append("")
    groups: dict[str, list[Any]] = {OTHERS: []}
    for param in options:
        groups.setdefault(section_of(param), []).append(param)
    for group, members in groups.items():
        lines += [] if group == OTHERS else ["", f"**{group}**", ""]
        lines += ["| option | | environment |", "|---|---|---|"]
        lines += [f"| {_spelling(p)} | {_described(p)} | {_environment(p)} |" for p in members]
    return "\n".join([*lines, ""])


def _help_text(text: str) -> str:
    """Paragraphs; those marked to keep their lines become code blocks."""
    shown = []
    for paragraph in text.strip().split("\n\n"):
        if paragraph.startswith("\b"):
            title, *lines = paragraph[1:].strip("\n").split("\n")
            shown.append(
                f"{title.strip()}\n\n```\n" + "\n".join(x.strip() for x in lines) + "\n```"
            )
        else:
            shown.append(" ".join(paragraph.split()))
    return "\n\n".join(shown)


def _spelling(param: Any) -> str:
    names = " ".join(f"`{name}`" for name in param.opts)
    return f"{names} `{param.metavar}`".replace("|", "\\|") if param.metavar else names


def _described(param: Any) -> str:
    text = str(param.help or "").replace("|", "\\|")
    shown = param.show_default
    if param.required:
        return f"{text} Required."
    if isinstance(shown, str):
        return f"{text} Default: {shown}."
    if shown and param.default not in (None, False, True):
        return f"{text} Default: {param.default}."
    return text


def _environment(param: Any) -> str:
    return f"`{param.envvar}`" if param.envvar else ""


def main(arguments: list[str]) -> int:
    """Write the page, or with ``--check`` tell whether it is up to date."""
    text = reference()
    if arguments == ["--check"]:
        return int(REFERENCE.read_text(encoding="utf-8") != text)
    REFERENCE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
