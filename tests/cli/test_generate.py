"""``selfdraft generate``: prompts in, text and records out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.reciting_bundle import CONTROL, REPLY, write_reciting_bundle


def record(result: Any) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    loaded: dict[str, Any] = json.loads(result.stdout)
    return loaded


@pytest.mark.parametrize("drafts", [None, 0, 1, 2, 3, 8])
def test_reply_is_the_same_with_any_number_of_drafts(
    run: Any, shared_bundle: Path, drafts: int | None
) -> None:
    options = [] if drafts is None else ["--drafts", drafts]
    result = run("generate", shared_bundle, "hello", *options)
    assert result.exit_code == 0
    assert result.stdout == REPLY + "\n"
    assert "14 tokens (eos)" in result.stderr


def test_drafts_are_accepted_and_counted(run: Any, shared_bundle: Path) -> None:
    result = record(run("generate", shared_bundle, "hello", "--drafts", 3, "--json"))
    assert result["steps"] < len(result["tokens"]) - 1
    assert sum(result["accepted"]) == sum(result["drafted_tokens"]) > 0
    assert result["acceptance_per_position"][0] == 1.0
    assert result["acceptance_per_position"][2] < 1.0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["x", "--raw", "--max-tokens", 5], "yzxyz"),
        (["x", "--raw", "--stop-token", "x"], "yz"),
        (["x", "--raw", "--stop-token", "57", "--max-tokens", 9], "yzxyzxyzx"),
        (["hi", "--stop-token", "w"], "Hi,bé-"),
        (["hi", "--max-tokens", 5], "Hi,b\ufffd"),
        (["hi", "--context", 30], None),
        (["hi", "--chunk", 1], REPLY),
        (["hi", "--no-stream"], REPLY),
        (["hi", "--system", "Be brief."], REPLY),
        (["hi", "--mode", "greedy", "--temperature", 0], REPLY),
        (["hi", "--mode", "match", "--temperature", 0.01, "--seed", 1], REPLY),
        (["hi", "--temperature", 2, "--top-k", 1, "--seed", 1], REPLY),
        (["hi", "--show-provenance", "--drafts", 1], "H‹i›,b‹é›-‹w›☃‹k›!"),
    ],
)
def test_options_do_what_they_say(
    run: Any, shared_bundle: Path, options: list[object], text: str | None
) -> None:
    result = run("generate", shared_bundle, *options)
    assert result.exit_code == 0, result.stderr
    if text is None:
        assert "(context)" in result.stderr
    elif "--show-provenance" in options:
        assert "‹" in result.stdout
        assert result.stdout.replace("‹", "").replace("›", "") == REPLY + "\n"
    else:
        assert result.stdout == text + "\n"


def test_provenance_marks_exactly_the_accepted_drafts(run: Any, shared_bundle: Path) -> None:
    options = ("hi", "--drafts", 2)
    shown = run("generate", shared_bundle, *options, "--show-provenance").stdout
    result = record(run("generate", shared_bundle, *options, "--json"))
    data, ends = REPLY.encode(), []
    for character in REPLY:
        ends.append((ends[-1] if ends else 0) + len(character.encode()))
    expected = {REPLY[i] for i, end in enumerate(ends) if result["drafted_tokens"][end - 1]}
    marked = {c for part in shown.split("‹")[1:] for c in part.split("›")[0]}
    assert marked == expected and len(data) == ends[-1]


def test_same_seed_same_text_with_and_without_drafts(run: Any, shared_bundle: Path) -> None:
    options = ("hi", "--mode", "match", "--temperature", 30, "--max-tokens", 40, "--json")
    texts = {
        record(run("generate", shared_bundle, *options, "--seed", 7, "--drafts", k))["text"]
        for k in range(5)
    }
    other = record(run("generate", shared_bundle, *options, "--seed", 8))["text"]
    assert len(texts) == 1 and other not in texts


def test_seed_used_is_in_the_record(run: Any, shared_bundle: Path) -> None:
    options = ("hi", "--mode", "match", "--temperature", 30, "--max-tokens", 20, "--json")
    first = record(run("generate", shared_bundle, *options))
    again = record(run("generate", shared_bundle, *options, "--seed", first["seed"]))
    assert again["tokens"] == first["tokens"]


@pytest.mark.parametrize("argument", [["-"], []])
def test_prompt_comes_from_a_pipe(run: Any, shared_bundle: Path, argument: list[str]) -> None:
    result = run("generate", shared_bundle, *argument, "--raw", "--max-tokens", 3, input="x\n")
    assert result.stdout == "yzx\n"


def test_text_in_a_pipe_is_untouched(run: Any, shared_bundle: Path) -> None:
    result = run("generate", shared_bundle, "c", "--raw")
    assert result.stdout_bytes == CONTROL.encode() + b"\n"


def test_template_arguments_reach_the_template(run: Any, tmp_path: Path) -> None:
    template = "{{ raise_exception('got ' ~ [a, b]) }}"
    bundle = write_reciting_bundle(tmp_path / "b", template=template)
    result = run(
        "generate", bundle, "hi", "--template-arg", "a=false", "--template-arg", "b=no thanks"
    )
    assert "got [False, 'no thanks']" in result.stderr


def test_bundle_without_head_decodes_plainly(run: Any, tmp_path: Path) -> None:
    bundle = write_reciting_bundle(tmp_path / "b", mtp=False)
    result = record(run("generate", bundle, "hi", "--json"))
    assert result["text"] == REPLY and result["drafted"] == []
    refused = run("generate", bundle, "hi", "--drafts", 2)
    assert refused.exit_code == 2
    assert "--drafts is 2, this bundle has no MTP head" in refused.stderr


@pytest.mark.parametrize(
    ("options", "code", "part"),
    [
        (["hi", "--mode", "best"], 2, "unknown mode 'best'"),
        (["hi", "--mode", "greedy", "--temperature", 1], 2, "mode greedy has no temperature"),
        (["hi", "--mode", "match", "--temperature", 0], 2, "nothing to draw"),
        (["hi", "--temperature", -1], 2, "temperature"),
        (["hi", "--top-p", 0], 2, "top_p"),
        (["hi", "--backend", "rt"], 2, "'rt' (did you mean 'ort'?)"),
        (["hi", "--stop-token", "two words"], 2, "is 9 tokens"),
        (["hi", "--stop-token", "9999"], 2, "9999"),
        (["hi", "--template-arg", "novalue"], 2, "is not NAME=VALUE"),
        (["hi", "--template-arg", "messages=1"], 2, "'messages'"),
        (["hi", "--raw", "--system", "s"], 2, "--raw applies no chat template"),
        (["hi", "--context", 99999], 2, "--context is 99999, the bundle holds"),
        (["hi", "--chunk", 99999], 2, "--chunk is 99999, the bundle holds"),
        (["  "], 2, "the prompt is empty"),
        (["x" * 300, "--raw"], 4, "the prompt has 300 tokens"),
        (["x" * 256, "--raw"], 4, "the prompt has 256 tokens"),
    ],
)
def test_wrong_options_are_refused_with_the_next_step(
    run: Any, shared_bundle: Path, options: list[object], code: int, part: str
) -> None:
    result = run("generate", shared_bundle, *options)
    assert result.exit_code == code, result.stderr
    problem, hint = result.stderr.splitlines()
    assert problem.startswith("error: ") and part in problem and hint.startswith("hint: ")
    assert result.stdout.strip() == ""


def test_stdin_that_is_no_text_is_refused(run: Any, shared_bundle: Path) -> None:
    result = run("generate", shared_bundle, "-", input=b"ab\xff")
    assert result.exit_code == 2 and "not UTF-8 at byte 2" in result.stderr


def test_bundle_without_template_wants_raw(run: Any, tmp_path: Path) -> None:
    bundle = write_reciting_bundle(tmp_path / "b", template=None)
    result = run("generate", bundle, "hi")
    assert result.exit_code == 2 and "--raw" in result.stderr
    assert run("generate", bundle, "x", "--raw", "--max-tokens", 2).stdout == "yz\n"
