"""What is written where: results on stdout, everything else on stderr, progress on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import typer

from selfdraft.runtime.text_stream import terminal_safe

if TYPE_CHECKING:
    from selfdraft.cli.reply import Piece

DRAFTED_STYLE = ("\x1b[32m", "\x1b[39m")
DIM_STYLE = ("\x1b[2m", "\x1b[22m")
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
    """Model text to a stream as it comes: harmless on a terminal, untouched in a pipe.

    ``provenance`` marks accepted drafts, green on a terminal, in ‹› elsewhere; ``dim`` shows all of
    it paler on a terminal.
    """

    def __init__(self, stream: TextIO, *, provenance: bool = False, dim: bool = False) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._provenance = provenance
        self._in_draft = False
        self._start, self._end = DRAFTED_STYLE if self._terminal else DRAFTED_MARKS
        self._pale, self._plain = DIM_STYLE if dim and self._terminal else ("", "")
        self._at_line_start = True
        self._written = False

    def write(self, text: str, drafted: bool) -> None:
        """Show a delta now."""
        shown = terminal_safe(text) if self._terminal else text
        if self._provenance and drafted != self._in_draft:
            shown = (self._start if drafted else self._end) + shown
            self._in_draft = drafted
        self._at_line_start = shown.endswith("\n")
        self._stream.write(shown if self._written else self._pale + shown)
        self._written = True
        self._stream.flush()

    def finish(self) -> None:
        """End the text and its line."""
        if self._in_draft:
            self._stream.write(self._end)
            self._in_draft = False
        if self._written:
            self._stream.write(self._plain)
            self._written = False
        if not self._at_line_start:
            self._stream.write("\n")
            self._at_line_start = True
        self._stream.flush()


class ReplyWriter:
    """A reply as it comes: its answer to stdout, its thoughts to stderr, pale on a terminal.

    Where both are terminals an empty line stands between them.
    """

    def __init__(self, *, provenance: bool = False) -> None:
        self._answer = TextWriter(sys.stdout, provenance=provenance)
        self._thought = TextWriter(sys.stderr, provenance=provenance, dim=True)
        self._one_screen = sys.stdout.isatty() and sys.stderr.isatty()
        self._thinking: bool | None = None
        """Of the last piece; None before the first."""

    def write(self, piece: Piece) -> None:
        """Show a piece now."""
        if self._thinking not in (None, piece.thinking):
            self.finish()
            if self._one_screen:
                sys.stderr.write("\n")
                sys.stderr.flush()
        self._thinking = piece.thinking
        writer = self._thought if piece.thinking else self._answer
        writer.write(piece.text, piece.drafted)

    def finish(self) -> None:
        """End the line."""
        self._thought.finish()
        self._answer.finish()


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
