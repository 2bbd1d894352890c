"""Entry point of ``selfdraft``."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from selfdraft import __version__
from selfdraft.cli.failures import EXIT_BROKEN_PIPE, CliState, run_guarded, silence_stdout
from selfdraft.cli.registry import COMMANDS, LazyCommands
from selfdraft.cli.streams import EXIT_NO_STDOUT, open_streams


class LazyGroup(TyperGroup):
    """Group that loads a command's module when that command is used."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        commands: Any = LazyCommands()
        self.commands = commands

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of the help, without loading anything."""
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that ``args`` begin with; one of two words (``bench serve``) comes first."""
        name = " ".join(args[:2])
        if len(args) > 1 and name in COMMANDS:
            return name, self.get_command(ctx, name), args[2:]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Help of the commands, without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a reader of stdout that went away ends it quietly."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            silence_stdout()
            raise typer.Exit(EXIT_BROKEN_PIPE) from None
        return result

    def main(self, *args: Any, **settings: Any) -> Any:
        """Run the program and exit; errors are reported by ``failures``."""
        state = CliState()
        settings.update(standalone_mode=False, obj=state)
        run = super().main
        sys.exit(run_guarded(lambda: run(*args, **settings), state))


app = typer.Typer(
    name="selfdraft",
    cls=LazyGroup,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"selfdraft {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Language models with a multi-token-prediction head, decoding by their own drafts.

    \b
    First steps:
      selfdraft demo
      selfdraft export CHECKPOINT -o BUNDLE
      selfdraft chat BUNDLE

    Options of a command can also come from a file (--config) or the environment; the command
    line wins over the environment, and that over the file.
    """
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def main() -> None:
    """Run ``selfdraft`` with the arguments of the process."""
    if not open_streams():
        sys.exit(EXIT_NO_STDOUT)
    app(prog_name="selfdraft")


if __name__ == "__main__":
    main()
