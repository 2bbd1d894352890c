"""Writes docs/troubleshooting.md from the doctor's checks and messages: ``python`` this file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from selfdraft.jetson.checks import CHECKS
from selfdraft.jetson.checks_board import BOARD_CHECKS
from selfdraft.jetson.checks_memory import MEMORY_CHECKS
from selfdraft.jetson.checks_plugins import PLUGIN_CHECKS
from selfdraft.jetson.checks_power import POWER_CHECKS
from selfdraft.jetson.checks_software import SOFTWARE_CHECKS
from selfdraft.jetson.doctor import Check
from selfdraft.jetson.explain import Explanation
from selfdraft.jetson.explanations import CUDA, ENGINES, EXPLANATIONS, MEMORY, PYTHON
from selfdraft.jetson.kinds import KINDS, Kind

PAGE = Path(__file__).with_name("troubleshooting.md")
HEAD = """\
# Troubleshooting

Written by docs/generate_troubleshooting.py from the doctor's own checks; do not edit.

```
selfdraft doctor                                    # what is wrong with this board
selfdraft doctor --explain "the error message"      # what causes a message
some-command 2>&1 | selfdraft doctor --explain -    # the same for a whole log
```

The doctor changes nothing. It exits with 0 when nothing is worse than a notice, with 6 at a warning,
with 5 at a failure. Places in `<angle brackets>` are filled with this board's values. A line that begins
with `#` is something to do that cannot be typed.

A **failure** stops selfdraft from working as asked, a **warning** costs speed or memory or fails later, a
**notice** is good to know. The numbers are those of the table at the end.
"""
CHECK_GROUPS = (
    ("The board and its system", BOARD_CHECKS),
    ("Power, clocks, heat", POWER_CHECKS),
    ("Memory", MEMORY_CHECKS),
    ("CUDA, TensorRT, Python", SOFTWARE_CHECKS),
    ("GPU code", PLUGIN_CHECKS),
)
MESSAGE_GROUPS = (
    ("Memory", MEMORY),
    ("TensorRT", ENGINES),
    ("CUDA and power", CUDA),
    ("Python and pip", PYTHON),
)
SCOPES = {"any": "any machine", "jetson": "any Jetson", "orin": "Orin"}


def page() -> str:
    """The whole page."""
    lines = [HEAD, "## Checks", ""]
    for title, checks in CHECK_GROUPS:
        lines += [f"### {title}", ""]
        lines += [line for check in checks for line in _check(check)]
    lines += ["## Messages", ""]
    for title, explanations in MESSAGE_GROUPS:
        lines += [f"### {title}", ""]
        lines += [line for explanation in explanations for line in _message(explanation)]
    return "\n".join([*lines, *_kinds(), ""])


def _check(check: Check) -> list[str]:
    facts = f"{check.severity}, {SCOPES[check.scope]}{_numbers(check.kinds)}"
    return [
        f"**{check.title}** (`{check.name}`: {facts}): {check.consequence}.",
        "",
        *_block(check.mend),
    ]


def _message(explanation: Explanation) -> list[str]:
    name = f"`{explanation.name}`{_numbers(explanation.kinds)}"
    harmless = "no error; " if explanation.harmless else ""
    see = f" See also {_names(explanation.checks)}." if explanation.checks else ""
    return [
        f"**{explanation.title}** ({name}): {harmless}{explanation.cause}.{see}",
        "",
        *_block(f"{explanation.example}\n\n{explanation.mend}"),
    ]


def _block(text: str) -> list[str]:
    return ["```", text, "```", ""]


def _numbers(kinds: Iterable[int]) -> str:
    numbers = ", ".join(map(str, kinds))
    return f", kinds {numbers}" if "," in numbers else f", kind {numbers}" if numbers else ""


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _kinds() -> list[str]:
    lines = ["## Kinds of failure", "", "| | failure | reported as | met by |", "|---|---|---|---|"]
    return lines + [
        f"| {kind.number} | {kind.title} | {kind.source} | {_met_by(kind)} |" for kind in KINDS
    ]


def _met_by(kind: Kind) -> str:
    checks = [check.name for check in CHECKS if kind.number in check.kinds]
    messages = [e.name for e in EXPLANATIONS if kind.number in e.kinds]
    parts = [("check", checks), ("message", messages)]
    met = [f"{what} {_names(names)}" for what, names in parts if names]
    return "; ".join(met if kind.reason is None else [*met, f"no check: {kind.reason}"])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
