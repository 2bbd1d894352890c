"""``selfdraft monitor``: this machine, and logs of tegrastats."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.terminal import Terminal

LOG = Path(__file__).parents[1] / "jetson" / "data" / "tegrastats.txt"


def test_samples_of_this_machine_end_with_a_summary(run: Any) -> None:
    lines = run("monitor", "--count", 2, "--interval", 0.1).stdout.splitlines()
    assert sum("RAM" in line and "CPU" in line for line in lines) == 2
    assert lines[2].split() == ["samples", "2"]
    assert not lines[0].startswith(" ")


def test_json_is_a_line_for_each_sample_and_one_for_the_summary(run: Any) -> None:
    result = run("monitor", "--count", 2, "--interval", 0.1, "--json")
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [record["schema"] for record in records] == [
        "selfdraft.monitor/1",
        "selfdraft.monitor/1",
        "selfdraft.monitor.summary/1",
    ]
    assert records[0]["ram"]["total_bytes"] > 0
    assert records[2]["samples"] == 2


def test_log_of_tegrastats_is_summarised(run: Any) -> None:
    text = run("monitor", "--from", LOG).stdout
    assert text.splitlines()[0].split() == ["samples", "8"]
    assert "0 to 99" in text and "3.462 to 16.32" in text


def test_log_from_stdin_as_json(run: Any) -> None:
    result = run("monitor", "--from", "-", "--json", input=LOG.read_text())
    *samples, last = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(samples) == last["samples"] == 8
    assert samples[4]["power_mw"] == 4761
    assert last["power_w"]["max"] == pytest.approx(16.321)


@pytest.mark.parametrize("content", [None, "no tegrastats here\n"])
def test_log_without_samples_is_refused(run: Any, tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "log"
    if content is not None:
        path.write_text(content)
    result = run("monitor", "--from", path)
    assert result.exit_code == 2 and str(path) in result.stderr and result.stdout == ""


def test_live_view_is_drawn_over_itself_and_ends_with_a_summary(
    process_environment: dict[str, str],
) -> None:
    arguments = [sys.executable, "-m", "selfdraft", "monitor", "--interval", "0.1"]
    terminal = Terminal(arguments, process_environment)
    try:
        terminal.wait_for("\x1b[J")
        terminal.wait_for("RAM")
        terminal.interrupt()
        assert terminal.exit_code() == 0
        assert "samples" in terminal.shown
    finally:
        terminal.close()
