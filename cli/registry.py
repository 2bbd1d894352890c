"""The commands by name, and how one is loaded."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import typer

COMMANDS = {
    "demo": "Export the demo checkpoint, answer a prompt, and measure.",
    "export": "Turn a checkpoint into a bundle.",
    "inspect": "Show what a bundle holds, or what a checkpoint is.",
    "verify": "Check a bundle against its files, its source and itself.",
    "audit": "Compare sparse with dense attention over a text.",
    "eval": "Measure retrieval and acceptance at length.",
    "probe": "Find out why drafts are rejected.",
    "align": "Train the MTP head of a checkpoint, or give it one.",
    "generate": "Complete or answer one prompt.",
    "chat": "Talk with a model, turn by turn.",
    "serve": "Answer requests over HTTP, several at once.",
    "bench": "Measure plain against speculative decoding.",
    "bench serve": "Measure a server under load.",
    "plan": "Plan memory and speed on a board.",
    "advise": "Choose a way of decoding for a board and a need.",
    "doctor": "Check the board, and say what mends it.",
    "monitor": "Show load, heat and power of the board.",
    "lengths": "Compare how long replies are.",
    "push": "Copy a bundle to a board, checked at the other end.",
    "build": "Build a bundle's TensorRT engines on the board.",
    "plugins": "Compile the CUDA kernels and report what they need.",
}
"""Names with the line that ``selfdraft --help`` shows, in its order.

A name of two words has a module of its own, and options of its own.
"""


def load_command(name: str) -> Any:
    """The command ``name``: its module's function ``command`` and the common options."""
    from selfdraft.cli.common import common_params
    from selfdraft.cli.help_groups import GroupedCommand

    module = importlib.import_module(f"selfdraft.cli.{name.replace(' ', '_')}")
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    settings = {"help_option_names": ["-h", "--help"]}
    app.command(name, cls=GroupedCommand, context_settings=settings)(module.command)
    command = typer.main.get_command(app)
    command.params.extend(common_params())
    return command


class LazyCommands(Mapping[str, Any]):
    """All commands by name; reading one loads its module."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        if name not in self._loaded:
            self._loaded[name] = load_command(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)
