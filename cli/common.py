"""Options that every command has: -v, --debug, --config."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from selfdraft.cli.config_file import options_from_config
from selfdraft.cli.failures import CliState


def common_params() -> list[Any]:
    """The common options, as parameters to add to a command."""
    carrier = typer.Typer(add_completion=False)
    carrier.command()(_carrier)
    return [p for p in typer.main.get_command(carrier).params if p.name in _carrier.__annotations__]


def _set_verbosity(ctx: typer.Context, value: int) -> None:
    if value and not ctx.resilient_parsing:
        level = logging.INFO if value == 1 else logging.DEBUG
        form = "%(relativeCreated)7.0f ms %(name)s: %(message)s"
        logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format=form, force=True)
        logging.getLogger("selfdraft").setLevel(level)


def _set_debug(ctx: typer.Context, value: bool) -> None:
    if value and isinstance(ctx.obj, CliState):
        ctx.obj.debug = True


def _set_config(ctx: typer.Context, value: Path | None) -> None:
    if value is not None and not ctx.resilient_parsing:
        ctx.default_map = options_from_config(value, command=ctx.command)


def _carrier(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            envvar="SELFDRAFT_CONFIG",
            metavar="FILE",
            help="TOML file with options: a table for each command, common ones on top.",
            callback=_set_config,
            is_eager=True,
            expose_value=False,
        ),
    ] = None,
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose",
            "-v",
            count=True,
            show_default=False,
            help="Log to stderr; -vv logs more.",
            callback=_set_verbosity,
            is_eager=True,
            expose_value=False,
        ),
    ] = 0,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            help="Show the traceback of an error.",
            callback=_set_debug,
            is_eager=True,
            expose_value=False,
        ),
    ] = False,
) -> None:
    """Never run: it only carries the options."""
