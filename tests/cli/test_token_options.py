"""Options of generate and chat on what a reply may say, where it ends, and its chunks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.reciting_bundle import REPLY


def _record(result: Any) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    loaded: dict[str, Any] = json.loads(result.stdout)
    return loaded


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--stop", "☃"], "Hi,bé-w"),
        (["--stop", "zz", "--stop", "é-"], "Hi,b"),
        (["--stop", "bé", "--keep-stop"], "Hi,bé"),
        (["--stop", "b", "--min-tokens", 9], REPLY),
        (["--allow-token", "H", "--max-tokens", 3], "HHH"),
        (["--mode", "rejection", "--temperature", 0.01], REPLY),
    ],
)
def test_reply_says_and_ends_as_the_options_want(
    run: Any, shared_bundle: Path, options: list[object], text: str, drafts: int
) -> None:
    result = run("generate", shared_bundle, "hi", "--drafts", drafts, *options)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == text + "\n"


@pytest.mark.parametrize(
    "options",
    [
        ["--ban-token", "b"],
        ["--logit-bias", "b=-100"],
        ["--bad-word", "b"],
        ["--repetition-penalty", 5],
        ["--frequency-penalty", 2, "--temperature", 60, "--seed", 3],
        ["--presence-penalty", 2, "--temperature", 60, "--seed", 3],
        ["--no-repeat-ngram", 1],
    ],
    ids=lambda options: options[0],
)
def test_each_rule_reaches_the_request_and_gives_the_same_with_drafts(
    run: Any, shared_bundle: Path, options: list[object]
) -> None:
    common = ("generate", shared_bundle, "hi", "--max-tokens", 30, "--json")
    sampling = [o for o in ("--temperature", 60, "--seed", 3) if "--seed" in options]
    free = _record(run(*common, *sampling))
    bound = [_record(run(*common, "--drafts", k, *options)) for k in (0, 3)]
    assert bound[0]["tokens"] == bound[1]["tokens"] != free["tokens"]


def test_logprobs_stand_in_the_record_with_every_token(run: Any, shared_bundle: Path) -> None:
    record = _record(run("generate", shared_bundle, "hi", "--json", "--logprobs", 2))
    assert [entry[0] for entry in record["logprobs"]] == record["tokens"]
    assert all(len(entry[2]) == len(entry[3]) == 2 for entry in record["logprobs"])


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--logit-bias", "b"], "logit bias 'b' is not TOKEN=NUMBER"),
        (["--logit-bias", "b=101"], "logit_bias of token"),
        (["--ban-token", "two tokens"], "it must be one"),
        (["--ban-token", "b", "--allow-token", "b"], "allowed_token_ids and in banned_token_ids"),
        (["--frequency-penalty", 3], "frequency_penalty is 3.0"),
        (["--keep-stop"], "include_stop_str_in_output is given without stop"),
        (["--max-chunks", 2], "--max-chunks counts chunks"),
        (["--num-beams", 2, "--no-stream", "--stop", "x"], "beam search takes no --stop"),
        (["--every", "word"], "chunks of 'word' are unknown"),
        (["--resume"], "--resume goes on with the prompt"),
        (["--mode", "rejection", "--temperature", 0], "nothing to draw"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_options_are_refused_by_name(
    run: Any, shared_bundle: Path, options: list[object], part: str
) -> None:
    result = run("generate", shared_bundle, "hi", *options)
    assert result.exit_code == 2 and part in result.stderr, result.stderr


@pytest.mark.parametrize("every", [5, "sentence"])
def test_reply_stopped_after_a_chunk_is_resumed_from_its_file(
    run: Any, shared_bundle: Path, tmp_path: Path, every: object
) -> None:
    first = tmp_path / "first.cache"
    whole = _record(run("generate", shared_bundle, "hi", "--json", "--stop", "k!"))
    common = ("--every", every, "--max-chunks", 1, "--json")
    options = ("--stop", "k!", "--drafts", 2, "--save-cache", first)
    begun = _record(run("generate", shared_bundle, "hi", *common, *options))
    if every == "sentence":
        assert begun["text"] == whole["text"]
        return
    assert begun["finish_reason"] == "closed" and len(begun["tokens"]) == 5
    rest = _record(run("generate", shared_bundle, "--resume", "--load-cache", first, "--json"))
    assert begun["text"] + rest["text"] == whole["text"]
    assert begun["tokens"] + rest["tokens"] == whole["tokens"]
    assert rest["stop_reason"] == "k!" and rest["resumed_tokens"] == 5
    assert rest["reused_tokens"] >= rest["prompt_tokens"]
    line = run("generate", shared_bundle, "--resume", "--load-cache", first).stderr
    known = rest["prompt_tokens"] + 5
    assert f"{rest['reused_tokens']} of {known} prompt and reply tokens reused" in line


def test_cache_without_a_stopped_reply_is_not_resumed(
    run: Any, shared_bundle: Path, tmp_path: Path
) -> None:
    path = tmp_path / "whole.cache"
    assert run("generate", shared_bundle, "hi", "--save-cache", path).exit_code == 0
    result = run("generate", shared_bundle, "--resume", "--load-cache", path)
    assert result.exit_code == 2 and "no stopped reply to resume" in result.stderr


def test_chat_goes_on_after_a_stop_string(run: Any, shared_bundle: Path) -> None:
    lines = "hello\nonce more\n"
    result = run("chat", shared_bundle, "--stop", "é-w", "--drafts", 2, input=lines)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "Hi,b\nHi,b\n"
