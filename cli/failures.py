"""How a run ends: two lines and an exit code for what a user can mend, quiet for the rest."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer

from selfdraft.errors import ConfigError, ResourceError, ToolkitError
from selfdraft.runtime.text_stream import terminal_safe

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


@dataclass(slots=True)
class CliState:
    """What the options common to all commands set."""

    debug: bool = False


def run_guarded(work: Callable[[], object], state: CliState) -> int:
    """Exit code of ``work``; its errors are reported on stderr."""
    try:
        result = work()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except typer.Abort:
        return 1
    except BrokenPipeError:
        silence_stdout()
        return EXIT_BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the last place that can report anything
        return _report(error, state)
    return result if isinstance(result, int) else 0


def silence_stdout() -> None:
    """Send what is left of stdout nowhere: its reader is gone, and exit must not complain."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())


def _report(error: Exception, state: CliState) -> int:
    known = _mendable(error)
    if state.debug:
        traceback.print_exception(error)
    if known is not None:
        _print_error(known.problem, known.hint)
        return known.exit_code
    summary = " ".join(f"{type(error).__name__}: {error}".split())
    hint = "report this with the lines above" if state.debug else "run it again with --debug"
    _print_error(f"unexpected failure: {summary[:300]}", f"{hint}; this is a fault of selfdraft")
    return 1


def _print_error(problem: str, hint: str) -> None:
    typer.echo(f"error: {terminal_safe(problem)}\nhint: {terminal_safe(hint)}", err=True)


def _mendable(error: Exception) -> ToolkitError | None:
    """The error as one that tells the next step, where there is one."""
    if isinstance(error, ToolkitError):
        return error
    usage = _usage_error(error)
    if usage is not None:
        return usage
    if isinstance(error, MemoryError):
        return ResourceError("memory is full", hint="choose a smaller --context, or close programs")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceError(f"the disk is full: {error}", hint="free some space, then repeat")
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ResourceError(f"no permission: {error}", hint="choose a path you may write to")
    return None


def _usage_error(error: Exception) -> ConfigError | None:
    """A wrong option or argument, reported by typer's parser."""
    describe = getattr(error, "format_message", None)
    if describe is None:
        return None
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "selfdraft"
    problem = " ".join(describe().split()).rstrip(".")
    hint = f"see: {command} --help"
    meaning = _meaning(error, context)
    if meaning is not None:
        hint = f"{meaning} {hint.capitalize()}"
    return ConfigError(problem[:1].lower() + problem[1:], hint=hint)


def _meaning(error: Exception, context: Any) -> str | None:
    """What the option or argument is that was used wrongly, where the command has it."""
    name, param = getattr(error, "option_name", None), getattr(error, "param", None)
    if param is None and context is not None:
        param = next((each for each in context.command.params if name in each.opts), None)
    if param is None or not param.help:
        return None
    metavar = param.metavar or ""
    shown = metavar if param.param_type_name == "argument" else f"{name or param.opts[0]} {metavar}"
    return f"{shown.strip()}: {param.help}"
