"""``selfdraft chat``: turns, commands, pipes, and Ctrl-C on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.reciting_bundle import REPLY, write_reciting_bundle

pytest.importorskip("pty", reason="no pseudo-terminals on this system")

from support.terminal import Terminal


def chat(run: Any, bundle: Path, lines: list[str], *options: object) -> Any:
    return run("chat", bundle, *options, input="".join(line + "\n" for line in lines))


def records(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_pipe_gets_replies_only_and_ends_with_0(run: Any, shared_bundle: Path) -> None:
    result = chat(run, shared_bundle, ["hello", "", "again"])
    assert result.exit_code == 0
    assert result.stdout == f"{REPLY}\n{REPLY}\n"
    assert result.stderr == ""


def test_last_line_needs_no_newline(run: Any, shared_bundle: Path) -> None:
    assert run("chat", shared_bundle, input="hello").stdout == REPLY + "\n"


def test_second_turn_reuses_the_caches(run: Any, shared_bundle: Path) -> None:
    first, second = records(chat(run, shared_bundle, ["hello", "again"], "--json"))
    said = len(first["prompt_token_ids"]) + len(first["tokens"])
    assert first["reused_tokens"] == 0
    # What the head has not seen yet when a reply ends: the rows of its last step.
    assert said - 4 <= second["reused_tokens"] < said
    assert (
        second["prompt_token_ids"][: said - 1] == first["prompt_token_ids"] + first["tokens"][:-1]
    )


@pytest.mark.parametrize("drafts", [0, 2, 4])
def test_later_turns_are_the_same_as_without_caches(
    run: Any, shared_bundle: Path, drafts: int
) -> None:
    lines = ["hello", "and then?", "more"]
    options = ("--json", "--mode", "match", "--temperature", 30, "--seed", 3, "--max-tokens", 12)
    turns = records(chat(run, shared_bundle, lines, *options, "--drafts", drafts))
    plain = records(chat(run, shared_bundle, lines, *options, "--drafts", 0, "--chunk", 1))
    assert [t["tokens"] for t in turns] == [t["tokens"] for t in plain]
    assert len(turns) == 3


def test_reset_forgets_the_conversation(run: Any, shared_bundle: Path) -> None:
    first, second = records(chat(run, shared_bundle, ["hello", "/reset", "hello"], "--json"))
    assert second["prompt_token_ids"] == first["prompt_token_ids"] and second["reused_tokens"] == 0


def test_system_prompt_survives_a_reset(run: Any, shared_bundle: Path) -> None:
    options = ("--json", "--system", "Recite.")
    first, second = records(chat(run, shared_bundle, ["hello", "/reset", "hello"], *options))
    plain = records(chat(run, shared_bundle, ["hello"], "--json"))[0]
    assert second["prompt_token_ids"] == first["prompt_token_ids"] != plain["prompt_token_ids"]


def test_stats_show_speed_acceptance_and_context(run: Any, shared_bundle: Path) -> None:
    result = chat(run, shared_bundle, ["/stats", "hello", "/stats"], "--drafts", 1)
    assert "nothing was said yet" in result.stderr
    assert "tokens a step" in result.stderr and "accepted 1st" in result.stderr
    assert "of 256 tokens" in result.stderr


def test_save_writes_the_conversation(run: Any, shared_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    result = chat(run, shared_bundle, ["hello", f"/save {path}", "more", f"/save {path}"])
    assert result.exit_code == 0, result.stderr
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert saved["schema"] == "selfdraft.chat/1"
    assert [m["content"] for m in saved["messages"]] == ["hello", REPLY, "more", REPLY]


@pytest.mark.parametrize(
    ("line", "code", "part"),
    [
        ("/save", 2, "/save needs a file name"),
        ("/save {there}", 2, "exists already"),
        ("/save {missing}", 4, "cannot be written"),
        ("/sav x", 2, "unknown command /sav (did you mean '/save'?)"),
    ],
)
def test_wrong_command_is_reported_and_the_chat_goes_on(
    run: Any, shared_bundle: Path, tmp_path: Path, line: str, code: int, part: str
) -> None:
    there = tmp_path / "there.json"
    there.write_text("mine")
    command = line.format(there=there, missing=tmp_path / "no" / "f.json")
    result = chat(run, shared_bundle, ["hello", command, "again"])
    assert part in result.stderr and result.exit_code == code
    assert result.stdout == f"{REPLY}\n{REPLY}\n"
    assert there.read_text() == "mine"


def test_quit_ends_with_0(run: Any, shared_bundle: Path) -> None:
    result = chat(run, shared_bundle, ["/quit", "hello"])
    assert (result.exit_code, result.stdout) == (0, "")


def test_full_context_loses_nothing(run: Any, tmp_path: Path) -> None:
    bundle = write_reciting_bundle(tmp_path / "b", context=100)
    saved = tmp_path / "talk.json"
    result = chat(run, bundle, ["hello", "x" * 60, f"/save {saved}", "/reset", "hello"])
    assert "the context holds 100" in result.stderr and "/reset starts a new one" in result.stderr
    assert result.exit_code == 4
    assert [m["content"] for m in json.loads(saved.read_text())["messages"]] == ["hello", REPLY]
    assert result.stdout == f"{REPLY}\n{REPLY}\n"


def test_reply_that_fills_the_context_says_so(run: Any, tmp_path: Path) -> None:
    bundle = write_reciting_bundle(tmp_path / "b", context=64, endless=True)
    result = chat(run, bundle, ["hello"])
    assert "the context of 64 tokens is full" in result.stderr
    assert result.exit_code == 0


def test_template_that_changes_the_past_still_gives_the_right_prompt(
    run: Any, tmp_path: Path
) -> None:
    template = (
        "{% for m in messages %}<{{ m.content if loop.last else '...' }}>{% endfor %}"
        "{% if add_generation_prompt %}{{ '\n' }}{% endif %}"
    )
    bundle = write_reciting_bundle(tmp_path / "b", template=template)
    first, second = records(chat(run, bundle, ["hello", "again"], "--json"))
    assert len(second["prompt_token_ids"]) == len("<...><...><again>\n")
    assert second["text"] == first["text"] == REPLY


@pytest.fixture
def open_chat(process_environment: dict[str, str]) -> Iterator[Any]:
    terminals: list[Terminal] = []

    def start(bundle: Path, *options: str) -> Terminal:
        arguments = [sys.executable, "-m", "selfdraft.cli.main", "chat", str(bundle), *options]
        terminals.append(Terminal(arguments, process_environment))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()


def test_terminal_shows_banner_prompt_and_speed(open_chat: Any, shared_bundle: Path) -> None:
    terminal = open_chat(shared_bundle, "--drafts", "1")
    greeting = terminal.wait_for("> ")
    assert "It recites." in greeting and "What do you recite?" in greeting
    terminal.type("hello\n")
    answer = terminal.wait_for("> ")
    assert REPLY in answer and "tokens/s" in answer and "accepted 1st" in answer
    terminal.type("/quit\n")
    assert terminal.exit_code() == 0


def test_interrupt_stops_the_reply_and_not_the_chat(open_chat: Any, endless_bundle: Path) -> None:
    terminal = open_chat(endless_bundle)
    terminal.wait_for("> ")
    terminal.type("hello\n")
    terminal.wait_for("k!Hi")
    terminal.interrupt()
    assert "(closed)" in terminal.wait_for("> ")
    terminal.type("/stats\n")
    assert "last reply" in terminal.wait_for("> ")
    terminal.type("again\n")
    terminal.wait_for("k!Hi")
    terminal.interrupt()
    stopped = terminal.wait_for("> ")
    assert "(stopped)" in stopped and "reused" in stopped
    assert terminal.interrupt_until_exit() == 130


def test_end_of_input_on_the_terminal_ends_with_0(open_chat: Any, shared_bundle: Path) -> None:
    terminal = open_chat(shared_bundle)
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.exit_code() == 0


def test_interrupt_ends_generate_with_130(
    process_environment: dict[str, str], endless_bundle: Path
) -> None:
    arguments = [sys.executable, "-m", "selfdraft.cli.main", "generate", str(endless_bundle), "hi"]
    with closing(Terminal(arguments, process_environment)) as terminal:
        terminal.wait_for("k!Hi")
        terminal.interrupt()
        assert terminal.exit_code() == 130
        assert "Traceback" not in terminal.shown and "error" not in terminal.shown


def test_control_characters_are_harmless_on_a_terminal(
    process_environment: dict[str, str], shared_bundle: Path
) -> None:
    arguments = [sys.executable, "-m", "selfdraft.cli.main", "generate", str(shared_bundle)]
    with closing(Terminal([*arguments, "c", "--raw"], process_environment)) as terminal:
        assert terminal.exit_code() == 0
        assert "␛]2J␍" in terminal.shown and "\x1b" not in terminal.shown


@pytest.mark.parametrize("name", ["~no-such-user/talk.json", "a\0b"])
def test_saving_to_an_impossible_name_is_refused_and_the_chat_goes_on(
    run: Any, shared_bundle: Path, name: str
) -> None:
    result = chat(run, shared_bundle, [f"/save {name}", "hello"])
    assert result.exit_code == 2 and "is no file name" in result.stderr
    assert result.stdout == f"{REPLY}\n"


def test_conversation_after_reset_does_not_replace_the_saved_one(
    run: Any, shared_bundle: Path, tmp_path: Path
) -> None:
    path = tmp_path / "talk.json"
    result = chat(run, shared_bundle, ["hello", f"/save {path}", "/reset", f"/save {path}"])
    assert result.exit_code == 2 and "exists already" in result.stderr
    assert len(json.loads(path.read_text())["messages"]) == 2
    assert list(tmp_path.iterdir()) == [path]
