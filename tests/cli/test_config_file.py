"""Options from file, environment and command line, and their precedence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def config(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "selfdraft.toml"
        path.write_text(text)
        return path

    return write


def tokens_of(result: Any) -> int:
    assert result.exit_code == 0, result.stderr
    return len(json.loads(result.stdout)["tokens"])


def generate(run: Any, bundle: Path, *options: object, **settings: Any) -> Any:
    return run("generate", bundle, "x", "--raw", "--json", *options, **settings)


def test_command_line_wins_over_environment_over_file(
    run: Any, shared_bundle: Path, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config("[generate]\nmax-tokens = 3\n")
    assert tokens_of(generate(run, shared_bundle, "--config", path)) == 3
    monkeypatch.setenv("SELFDRAFT_MAX_TOKENS", "4")
    assert tokens_of(generate(run, shared_bundle, "--config", path)) == 4
    assert tokens_of(generate(run, shared_bundle, "--config", path, "--max-tokens", 5)) == 5
    assert tokens_of(generate(run, shared_bundle, "--max-tokens", 5, "--config", path)) == 5


def test_config_file_can_be_named_by_the_environment(
    run: Any, shared_bundle: Path, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELFDRAFT_CONFIG", str(config("max_tokens = 6\n")))
    assert tokens_of(generate(run, shared_bundle)) == 6


def test_table_wins_over_the_common_options(run: Any, shared_bundle: Path, config: Any) -> None:
    path = config("max-tokens = 3\nthreads = 1\n[generate]\nmax-tokens = 7\n[bench]\nrepeats=2\n")
    assert tokens_of(generate(run, shared_bundle, "--config", path)) == 7


def test_lists_and_switches_come_from_the_file(run: Any, shared_bundle: Path, config: Any) -> None:
    path = config('[generate]\nraw = true\njson = true\nstop-token = ["z"]\n')
    result = run("generate", shared_bundle, "x", "--config", path)
    record = json.loads(result.stdout)
    assert record["text"] == "y" and record["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[generate]\nmax-token = 3", "'generate.max-token' (did you mean 'generate.max-tokens'?)"),
        ("[genrate]\nmax-tokens = 3", "'genrate' (did you mean 'generate'?)"),
        ("thread = 3", "'thread' (did you mean 'threads'?)"),
        ("[bench]\ntemperature = 1", "'bench.temperature'"),
        ("[generate]\nconfig = 'x'", "'generate.config'"),
        ("[generate]\nmax-tokens = {a = 1}", "generate.max-tokens is a dict"),
        ("max-tokens", "no TOML"),
    ],
)
def test_wrong_keys_are_refused_by_name(
    run: Any, shared_bundle: Path, config: Any, text: str, part: str
) -> None:
    result = generate(run, shared_bundle, "--config", config(text))
    assert result.exit_code == 2
    assert part in result.stderr and len(result.stderr.splitlines()) == 2


def test_wrong_value_in_the_file_is_a_usage_error(
    run: Any, shared_bundle: Path, config: Any
) -> None:
    result = generate(run, shared_bundle, "--config", config("max-tokens = 'many'"))
    assert result.exit_code == 2 and "--max-tokens" in result.stderr


def test_missing_file_is_named(run: Any, shared_bundle: Path, tmp_path: Path) -> None:
    result = generate(run, shared_bundle, "--config", tmp_path / "none.toml")
    assert result.exit_code == 2 and "none.toml does not exist" in result.stderr


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("generate = 5", "generate is a table"),
        ("[generate]\nmax-tokens = 3\nmax_tokens = 4", "are the same option"),
        ("threads = " + "[" * 100_000, "nests its values too deeply"),
    ],
)
def test_file_that_cannot_mean_what_it_says_is_refused(
    run: Any, shared_bundle: Path, config: Any, text: str, named: str
) -> None:
    result = generate(run, shared_bundle, "--config", config(text))
    assert result.exit_code == 2 and named in result.stderr
    assert len(result.stderr.splitlines()) == 2 and result.stdout == ""
