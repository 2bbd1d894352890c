"""Writing to people and programs: tables, sizes, progress, interrupts."""

from __future__ import annotations

import io
import signal
import sys

import pytest

from selfdraft.cli import console
from selfdraft.cli.interrupts import StopFlag, stop_on_interrupt
from selfdraft.cli.reply import Piece


class Screen(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_columns_are_aligned_and_numbers_stand_right() -> None:
    text = console.table([("a", 1), ("long", 20)], header=("name", "n"))
    assert text.splitlines() == ["name   n", "a      1", "long  20"]
    assert console.table([]) == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 * 2**40, "5120.0 GiB")],
)
def test_bytes_are_shown_in_binary_units(count: int, text: str) -> None:
    assert console.bytes_text(count) == text


def test_progress_without_a_terminal_is_one_line_a_stage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with console.stage_progress() as on_stage:
        for done in range(1000):
            on_stage("weights", done, 1000)
        on_stage("hashes", 1, 1)
    assert capsys.readouterr().err == "weights\nhashes\n"


def test_progress_on_a_terminal_is_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with console.stage_progress() as on_stage:
        on_stage("weights", 1, 2)
        on_stage("weights", 2, 2)
    assert "weights" in screen.getvalue() and "100 %" in screen.getvalue()


def test_quiet_progress_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with console.stage_progress(quiet=True) as on_stage:
        on_stage("weights", 1, 2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("total", "shown"), [(100, False), (5000, True)])
def test_only_long_prompts_show_their_progress(
    monkeypatch: pytest.MonkeyPatch, total: int, shown: bool
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    console.prompt_progress(50, total)
    console.prompt_progress(total, total)
    assert (f"prompt 50/{total} tokens" in screen.getvalue()) == shown
    assert screen.getvalue() == "" or screen.getvalue().endswith("\x1b[K")


def test_first_interrupt_sets_the_flag_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_interrupt() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set
        with pytest.raises(StopFlag.Stopped):
            stop.check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_marks_of_drafts_close_at_the_end() -> None:
    screen = Screen()
    writer = console.TextWriter(screen, provenance=True)
    for text, drafted in (("a", False), ("b\x1b", True), ("c", True)):
        writer.write(text, drafted)
    writer.finish()
    assert screen.getvalue() == "a\x1b[32mb␛c\x1b[39m\n"


REPLY = (Piece("so", False, True), Piece(" on", True, True), Piece("yes", True, False))


def test_thoughts_are_pale_on_a_terminal_and_an_empty_line_ends_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    writer = console.ReplyWriter(provenance=True)
    for piece in REPLY:
        writer.write(piece)
    writer.finish()
    thought, empty, answer, end = screen.getvalue().split("\n")
    assert thought == "\x1b[2mso\x1b[32m on\x1b[39m\x1b[22m" and (empty, end) == ("", "")
    assert answer == "\x1b[32myes\x1b[39m"


def test_stdout_of_a_pipe_holds_the_answer_alone(capsys: pytest.CaptureFixture[str]) -> None:
    writer = console.ReplyWriter()
    for piece in REPLY:
        writer.write(piece)
    writer.finish()
    assert capsys.readouterr() == ("yes\n", "so on\n")
