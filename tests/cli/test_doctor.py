"""``selfdraft doctor``: text, JSON, exit codes, explanations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.fake_boards import BOARDS

import selfdraft.jetson.probe as probe_module

real_probe = probe_module.probe


@pytest.fixture
def on_board(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """``on_board("nano-8")``: commands see that board."""

    def choose(name: str) -> None:
        system = BOARDS[name](tmp_path / name)
        monkeypatch.setattr(probe_module, "probe", lambda: real_probe(system))

    return choose


@pytest.mark.parametrize(
    ("name", "code"),
    [("plain-pc", 0), ("agx-64-jetpack-7.2", 0), ("nx-16", 6), ("agx-64-jetpack-6.2", 5)],
)
def test_exit_code_follows_the_gravest_finding(
    run: Any, on_board: Any, name: str, code: int
) -> None:
    on_board(name)
    result = run("doctor")
    assert result.exit_code == code
    assert len(result.stderr.splitlines()) == (2 if code else 0)


def test_error_names_the_checks_and_the_first_command(run: Any, on_board: Any) -> None:
    on_board("agx-64-jetpack-6.2")
    error, hint = run("doctor").stderr.splitlines()
    assert error == "error: 1 failure: tensorrt-python"
    assert "--system-site-packages" in hint


def test_what_was_found_stands_before_what_follows(run: Any, on_board: Any) -> None:
    on_board("agx-64-jetpack-6.2")
    text = run("doctor").stdout
    parts = ["board ", "memory ", "failure  ", "warning  ", "notice  ", "unknown  ", "1 failure, "]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_all_shows_what_is_well_too(run: Any, on_board: Any) -> None:
    on_board("plain-pc")
    assert "onnxruntime-twice" not in run("doctor").stdout
    assert "ok       onnxruntime-twice" in run("doctor", "--all").stdout


def test_json_holds_device_and_findings(run: Any, on_board: Any) -> None:
    on_board("nano-8")
    record = json.loads(run("doctor", "--json").stdout)
    assert (record["schema"], record["worst"]) == ("selfdraft.doctor/1", "failure")
    assert record["device"]["identity"]["module_name"] == "orin-nano-8"
    by_name = {finding["check"]: finding for finding in record["findings"]}
    assert by_name["fragmentation"]["status"] == "warning"
    assert by_name["plugin-path"]["mend"].startswith("export SELFDRAFT_PLUGIN_PATH=")
    assert by_name["tensorrt"]["mend"] is None


def test_json_of_a_workstation_says_what_was_left_out(run: Any, on_board: Any) -> None:
    on_board("plain-pc")
    record = json.loads(run("doctor", "--json").stdout)
    assert record["worst"] == "notice" and "power-mode" in record["left_out"]


def test_explanation_tells_what_is_so_on_this_board(run: Any, on_board: Any) -> None:
    on_board("third-party-carrier")
    text = run("doctor", "--explain", "No module named 'tensorrt'").stdout
    assert "no-tensorrt-module" in text and "here: tensorrt-python: no Python binding" in text


def test_explanation_reads_a_log_from_stdin(run: Any, on_board: Any) -> None:
    on_board("nx-16")
    log = "noise\nNvMapMemAllocInternalTagged: 1075072515 error 12\nnoise\n"
    result = run("doctor", "--explain", "-", "--json", input=log)
    (match,) = json.loads(result.stdout)["matches"]
    assert match["name"] == "nvmap-error-12"
    assert match["line"] == "NvMapMemAllocInternalTagged: 1075072515 error 12"
    assert [finding["check"] for finding in match["findings"]] == ["l4t-36.4.7"]


def test_harmless_messages_are_called_so(run: Any, on_board: Any) -> None:
    on_board("plain-pc")
    text = run("doctor", "--explain", "Skipping tactic 0 due to insufficient memory").stdout
    assert "(no error)" in text


def test_unknown_message_is_an_error_with_a_next_step(run: Any) -> None:
    result = run("doctor", "--explain", "the moon is full")
    assert result.exit_code == 6 and result.stdout == ""
    assert "no message that is known" in result.stderr


def test_empty_text_is_refused(run: Any) -> None:
    assert run("doctor", "--explain", "  ").exit_code == 2


def test_message_cannot_control_the_terminal(run: Any) -> None:
    text = run("doctor", "--explain", "\x1b[2J No module named 'tensorrt'").stdout
    assert "\x1b" not in text
