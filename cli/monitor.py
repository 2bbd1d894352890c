"""``selfdraft monitor``: load, clocks, heat and power of the board while it runs."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfdraft.cli.console import print_json_line, say, table
from selfdraft.cli.options import JsonOption
from selfdraft.errors import ConfigError

if TYPE_CHECKING:
    from selfdraft.jetson.sample import BoardSample

SCHEMA = "selfdraft.monitor/1"
SUMMARY_SCHEMA = "selfdraft.monitor.summary/1"


def command(
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, metavar="S", help="Seconds between samples.")
    ] = 1.0,
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            min=1,
            metavar="N",
            help="End after N samples.",
            show_default="until Ctrl-C",
        ),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Summarise a log of tegrastats instead; - reads stdin.",
            show_default=False,
        ),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Show memory, CPUs, GPU, temperatures and power rails, by sysfs: no root, no daemon.

    Ends with a summary. --json prints a line for each sample.

    \b
    Examples:
      selfdraft monitor --interval 0.5
      tegrastats --interval 500 | selfdraft monitor --from -
    """
    from selfdraft.cli.monitor_text import summary, summary_rows

    samples = _from_board(interval, count) if log is None else _from_log(log)
    is_live_view = log is None and not json_output and sys.stdout.isatty()
    show = _view() if is_live_view else _json_line if json_output else _line
    kept: list[BoardSample] = []
    try:
        for sample in samples:
            kept.append(sample)
            if log is None or json_output:
                show(sample)
    except KeyboardInterrupt:
        if not kept:
            raise
    if log is not None and not kept:
        raise ConfigError(
            f"no line of tegrastats in {'stdin' if log == '-' else log}",
            hint="record one with: tegrastats --logfile FILE",
        )
    facts = summary(kept)
    if json_output:
        print_json_line({"schema": SUMMARY_SCHEMA, **facts})
    else:
        say(table(summary_rows(facts)))


def _from_board(interval_s: float, count: int | None) -> Iterator[BoardSample]:
    """Samples of this machine, until there are enough of them."""
    from selfdraft.jetson.sampler import next_interval_s
    from selfdraft.jetson.sysfs_sample import SysfsSource
    from selfdraft.jetson.system import System

    source = SysfsSource(System.live())
    cost_s = 0.0
    for _ in range(count) if count else itertools.count():
        time.sleep(next_interval_s(interval_s, cost_s=cost_s))
        before_s = time.thread_time()
        sample = source.read()
        cost_s = time.thread_time() - before_s
        yield sample


def _from_log(log: str) -> Iterator[BoardSample]:
    from selfdraft.jetson.tegrastats import parse_log

    if log == "-":
        yield from parse_log(iter(sys.stdin))
        return
    try:
        with Path(log).open(encoding="utf-8", errors="replace") as file:
            yield from parse_log(file)
    except OSError as error:
        raise ConfigError(
            f"{log} cannot be read: {error.strerror}", hint="give a log of tegrastats"
        ) from None


def _line(sample: BoardSample) -> None:
    from selfdraft.cli.monitor_text import sample_line

    say(sample_line(sample))


def _json_line(sample: BoardSample) -> None:
    from dataclasses import asdict

    print_json_line({"schema": SCHEMA, "power_mw": sample.power_mw, **asdict(sample)})


def _view() -> Any:
    """A table that is drawn over itself."""
    from selfdraft.cli.monitor_text import sample_rows

    drawn = 0

    def show(sample: BoardSample) -> None:
        nonlocal drawn
        text = table(sample_rows(sample))
        sys.stdout.write(f"\x1b[{drawn}A\x1b[J" if drawn else "")
        say(text)
        sys.stdout.flush()
        drawn = text.count("\n") + 1

    return show
