"""``--drafts auto``, the default of generate and chat."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selfdraft.runtime.adaptive import measure
from selfdraft.runtime.adaptive.costs import StepCosts

CHEAP = (1.0, 1.05, 1.1, 1.15, 1.2)
DEAR = (1.0, 1.9, 2.8, 3.7, 4.6)


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let steps cost what the test says instead of what this machine measures."""

    def say(*seconds: float) -> None:
        monkeypatch.setattr(measure, "measure_costs", lambda *_args, **_kw: StepCosts(seconds))

    return say


def _generate(run: Any, bundle: Path, *options: object) -> Any:
    return run("generate", bundle, "hello", "--temperature", 1, "--seed", 3, *options)


def test_cheap_drafts_are_made_and_the_text_is_that_of_plain_decoding(
    run: Any, shared_bundle: Path, costs: Callable[..., None]
) -> None:
    costs(*CHEAP)
    auto, asked, plain = (
        json.loads(_generate(run, shared_bundle, "--json", *options).stdout)
        for options in ((), ("--drafts", "auto"), ("--drafts", 0))
    )
    assert auto["tokens"] == asked["tokens"] == plain["tokens"]
    assert sum(auto["accepted"]) > 0 and len(auto["drafted"]) == measure.MOST_DRAFTS
    assert plain["drafted"] == []


def test_drafts_that_cannot_pay_are_not_made_and_that_is_said(
    run: Any, shared_bundle: Path, costs: Callable[..., None]
) -> None:
    costs(*DEAR)
    result = _generate(run, shared_bundle)
    assert result.exit_code == 0
    assert "no drafts: they cost more here" in result.stderr
    assert json.loads(_generate(run, shared_bundle, "--json").stdout)["drafted"] == []
    told = _generate(run, shared_bundle, "--drafts", 1)
    assert "cost more" not in told.stderr and "accepted 1st" in told.stderr


def test_auto_in_the_environment_is_the_default_where_a_command_has_no_auto(
    run: Any, endless_bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = ("acceptance", endless_bundle, "--context", 200, "--json")
    told = []
    for value in ("auto", "1", "2", "9"):
        monkeypatch.setenv("SELFDRAFT_DRAFTS", value)
        told.append(run("eval", *options))
    assert [result.exit_code for result in told] == [0, 0, 0, 2], told[0].stderr
    assert told[0].stdout == told[1].stdout != told[2].stdout
    monkeypatch.delenv("SELFDRAFT_DRAFTS")
    config = tmp_path / "config.toml"
    config.write_text('drafts = "auto"\n')
    assert run("eval", *options, "--config", config).stdout == told[0].stdout
    given = run("eval", *options, "--drafts", "auto")
    assert given.exit_code == 2 and "0 to 8 drafts, not auto" in given.stderr


def test_chat_keeps_its_pace_over_turns(
    run: Any, shared_bundle: Path, costs: Callable[..., None]
) -> None:
    costs(*CHEAP)
    result = run("chat", shared_bundle, "--json", input="hello\nhello\nhello\n")
    replies = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(replies) == 3 and all(sum(reply["accepted"]) > 0 for reply in replies)
    assert len({reply["text"] for reply in replies}) == 1


def test_costs_are_really_measured(run: Any, shared_bundle: Path) -> None:
    """Whatever this machine finds, the reply is the same."""
    auto = json.loads(_generate(run, shared_bundle, "--json").stdout)
    plain = json.loads(_generate(run, shared_bundle, "--json", "--drafts", 0).stdout)
    assert auto["tokens"] == plain["tokens"]


def test_summary_shows_the_positions_that_were_drafted(
    run: Any, shared_bundle: Path, costs: Callable[..., None]
) -> None:
    costs(*CHEAP)
    assert "(0/0)" not in _generate(run, shared_bundle).stderr


@pytest.mark.parametrize("wrong", ["9", "-1", "two", "automatic", ""])
def test_other_values_are_refused(run: Any, shared_bundle: Path, wrong: str) -> None:
    result = _generate(run, shared_bundle, f"--drafts={wrong}")
    assert result.exit_code == 2
    assert "neither 0 to 8 nor auto" in result.stderr


@pytest.mark.parametrize("drafts", ["auto", "2"])
def test_drafts_of_the_environment_suit_every_command(
    run: Any,
    shared_bundle: Path,
    endless_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    drafts: str,
) -> None:
    monkeypatch.setenv("SELFDRAFT_DRAFTS", drafts)
    monkeypatch.setenv("SELFDRAFT_SEED", "3")
    monkeypatch.setenv("SELFDRAFT_TASK", "code")
    needle = ("eval", "needle", endless_bundle, "--lengths", 900, "--trials", 1, "--tokens", 2)
    beams = ("generate", shared_bundle, "hi", "--num-beams", 2, "--no-stream")
    plan = ("plan", shared_bundle, "--json")
    for command in (needle, beams, plan):
        done = run(*command)
        assert done.exit_code == 0, done.stderr
    acceptance = ("eval", "acceptance", shared_bundle, "--trials", 1, "--context", 200, "--json")
    done = run(*acceptance)
    assert done.exit_code == 0, done.stderr
    buckets = json.loads(done.stdout)["buckets"]
    assert {len(bucket["drafted"]) for bucket in buckets} == {1 if drafts == "auto" else 2}
