"""What is written where: results on stdout, everything else on stderr, progress on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from selfdraft.runtime.text_stream import terminal_safe

DRAFTED_STYLE = ("\x1b[32m", "\x1b[0m")
DRAFTED_MARKS = ("‹", "›")
LONG_PROMPT_TOKENS = 1024

OnStage = Callable[[str, int, int], None]
"""Called with a stage, and how much of it is done, of how much."""


def say(text: str) -> None:
    """A line of the result on stdout."""
    typer.echo(terminal_safe(text))


def note(text: str) -> None:
    """A line on stderr."""
    typer.echo(terminal_safe(text), err=True)


def print_json(record: Any) -> None:
    """One JSON value on stdout, indented."""
    typer.echo(json.dumps(record, indent=1, ensure_ascii=False, default=str))


def print_json_line(record: Any) -> None:
    """One JSON value on one line of stdout."""
    typer.echo(json.dumps(record, ensure_ascii=False, default=str))


class TextWriter:
    """Model text to stdout as it comes: harmless on a terminal, untouched in a pipe.

    ``provenance`` marks accepted drafts, green on a terminal, in ‹› elsewhere.
    """

    def __init__(self, *, provenance: bool = False) -> None:
        self._terminal = sys.stdout.isatty()
        self._provenance = provenance
        self._in_draft = False
        self._start, self._end = DRAFTED_STYLE if self._terminal else DRAFTED_MARKS
        self._at_line_start = True

    def write(self, text: str, drafted: bool) -> None:
        """Show a delta now."""
        shown = terminal_safe(text) if self._terminal else text
        if self._provenance and drafted != self._in_draft:
            shown = (self._start if drafted else self._end) + shown
            self._in_draft = drafted
        self._at_line_start = shown.endswith("\n")
        sys.stdout.write(shown)
        sys.stdout.flush()

    def finish(self) -> None:
        """End the reply and its line."""
        if self._in_draft:
            sys.stdout.write(self._end)
            self._in_draft = False
        if not self._at_line_start:
            sys.stdout.write("\n")
            self._at_line_start = True
        sys.stdout.flush()


def prompt_progress(done: int, total: int) -> None:
    """Show on a terminal how much of a long prompt is computed; the line goes when it is done."""
    if total >= LONG_PROMPT_TOKENS and sys.stderr.isatty():
        shown = "" if done == total else f"prompt {done}/{total} tokens"
        sys.stderr.write(f"\r\x1b[K{shown}")
        sys.stderr.flush()


def table(rows: Sequence[Sequence[object]], *, header: Sequence[str] = ()) -> str:
    """Rows in aligned columns; numbers to the right."""
    if not rows:
        return ""
    cells = [[str(cell) for cell in row] for row in ([header] if header else []) + list(rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    right = [all(isinstance(row[i], (int, float)) for row in rows) for i in range(len(widths))]
    lines = []
    for row in cells:
        columns = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(columns).rstrip())
    return "\n".join(lines)


def bytes_text(count: int) -> str:
    """Bytes for people: ``512 B``, ``1.5 MiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


@contextmanager
def stage_progress(*, quiet: bool = False) -> Iterator[OnStage]:
    """Progress over named stages: a bar on a terminal, one line a stage elsewhere."""
    if quiet:
        yield lambda stage, done, total: None
    elif sys.stderr.isatty():
        with _bars() as on_stage:
            yield on_stage
    else:
        yield _lines()


def _lines() -> OnStage:
    seen: set[str] = set()

    def on_stage(stage: str, _done: int, _total: int) -> None:
        if stage not in seen:
            seen.add(stage)
            note(stage)

    return on_stage


@contextmanager
def _bars() -> Iterator[OnStage]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, Any] = {}

        def on_stage(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
            progress.update(tasks[stage], completed=done, total=total)

        yield on_stage
