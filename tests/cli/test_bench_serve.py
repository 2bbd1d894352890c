"""``selfdraft bench serve``: what a line holds, and where traffic may go. No time is judged."""

from __future__ import annotations

import json
import socket
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="the server: pip install 'selfdraft[serve]'")

from support.http_server import serving

from selfdraft.cli import bench_serve_run
from selfdraft.cli.load.address import loopback_address
from selfdraft.errors import ConfigError

FAST = ("--requests", 4, "--tokens", 6, "--rounds", 2)
TIMES = ("ttft_ms", "inter_token_ms", "per_token_ms", "total_ms", "late_ms")


def lines(result: Any) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_bundle_is_served_plain_and_with_drafts(
    run: Any, shared_bundle: Path, monkeypatch: pytest.MonkeyPatch, process_environment: Any
) -> None:
    monkeypatch.setenv("PYTHONPATH", process_environment["PYTHONPATH"])
    load = ("--clients", "2", "--slots", 2, "--drafts", "1")
    plain, drafted = lines(
        run("bench", "serve", shared_bundle, *load, *FAST, "--threads", 1, "--json")
    )
    assert [plain["drafts"], drafted["drafts"]] == ["0", "1"]
    for record in (plain, drafted):
        assert record["schema"] == "selfdraft.bench-serve/1"
        assert (record["loop"], record["clients"], record["rate"]) == ("closed", 2, None)
        assert (record["ok"], record["refused"], record["failed"]) == (8, 0, 0)
        assert record["backend"] == "reference" and record["slots"] == 2
        assert record["rounds"] == len(record["round_tok_per_s"]) == 2
        assert record["tok_per_s"] == pytest.approx(statistics.mean(record["round_tok_per_s"]))
        spent = sum(4 * 6 / speed for speed in record["round_tok_per_s"])
        assert record["wall_s"] == pytest.approx(spent)
        assert all(record[name]["p50"] <= record[name]["p99"] for name in TIMES)
        assert len(record["bundle_sha256"]) == 64 and record["git_commit"] != ""
    assert plain["speedup"] == 1.0
    ratios = np.divide(drafted["round_tok_per_s"], plain["round_tok_per_s"])
    assert drafted["speedup"] == pytest.approx(np.median(ratios))


def test_one_round_starts_one_server_after_the_other(
    run: Any, shared_bundle: Path, monkeypatch: pytest.MonkeyPatch, process_environment: Any
) -> None:
    monkeypatch.setenv("PYTHONPATH", process_environment["PYTHONPATH"])
    started, at_once = bench_serve_run.started_server, []

    @contextmanager
    def counted(*arguments: Any) -> Iterator[Any]:
        at_once.append(1)
        with started(*arguments) as server:
            yield server
        at_once.append(-1)

    monkeypatch.setattr(bench_serve_run, "started_server", counted)
    load = ("--clients", "1", *FAST[:4], "--rounds", 1, "--drafts", "1")
    plain, drafted = lines(run("bench", "serve", shared_bundle, *load, "--json"))
    assert at_once == [1, -1, 1, -1]
    assert drafted["speedup"] == pytest.approx(drafted["tok_per_s"] / plain["tok_per_s"])


def test_a_server_that_runs_is_measured_in_both_loops(run: Any, shared_bundle: Path) -> None:
    with serving(shared_bundle, api_key="secret") as opened:
        load = ("--url", opened.url, "--clients", "1,2", "--rate", "50", "--api-key", "secret")
        records = lines(run("bench", "serve", *load, *FAST, "--json"))
        before = opened.served.service.snapshot().finished["done"]
        shown = run("bench", "serve", *load, *FAST)
    assert [(r["loop"], r["clients"], r["rate"]) for r in records] == [
        ("closed", 1, None),
        ("closed", 2, None),
        ("open", None, 50.0),
    ]
    assert all(r["ok"] == 8 and r["drafts"] is r["speedup"] is None for r in records)
    assert records[0]["slots"] == 2 and before == 2 + 3 * 8, "two to warm up, and each once"
    assert shown.exit_code == 0 and "50 requests/s" in shown.stdout


def test_more_than_the_server_takes_is_told_as_refused(run: Any, shared_bundle: Path) -> None:
    from selfdraft.runtime.serving.options import ServingOptions

    with serving(shared_bundle, slots=1, options=ServingOptions(max_waiting=0)) as opened:
        load = ("--url", opened.url, "--rate", "1000", "--requests", 12, "--tokens", 40)
        load += ("--rounds", 1)
        (record,) = lines(run("bench", "serve", *load, "--json"))
    assert record["refused"] > 0 and record["failed"] == 0
    assert record["ok"] + record["refused"] == 12 and record["ok"] >= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give a bundle to serve"),
        (("BUNDLE", "--url", "http://127.0.0.1:1"), "give a bundle to serve"),
        (("--url", "http://192.0.2.1:8000"), "loopback"),
        (("--url", "https://127.0.0.1"), "local server"),
        (("--url", "http://127.0.0.1:1", "--drafts", "1"), "--drafts is for a server"),
        (("--url", "http://127.0.0.1:1", "--slots", "2"), "--slots is for a server"),
        (("--url", "http://127.0.0.1:1", "--backend", "ort"), "--backend is for a server"),
        (("BUNDLE", "--clients", "1,8", "--requests", "4"), "less than one for each of 8 clients"),
        (("--url", "http://127.0.0.1:1"), "no server answers"),
        (("BUNDLE", "--clients", "0"), "--clients"),
        (("BUNDLE", "--rate", "fast"), "--rate"),
        (("BUNDLE", "--drafts", "9"), "--drafts"),
        (("BUNDLE", "--prompts", "/nowhere"), "cannot be read"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    run: Any, shared_bundle: Path, arguments: tuple[str, ...], said: str
) -> None:
    given = [str(shared_bundle) if one == "BUNDLE" else one for one in arguments]
    result = run("bench", "serve", *given)
    assert result.exit_code == ConfigError.exit_code, result.stderr
    assert said in result.stderr


def test_options_of_the_environment_are_no_mistake_with_a_server_that_runs(
    run: Any, shared_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("THREADS", "1"), ("SLOTS", "3"), ("CONTEXT", "100")):
        monkeypatch.setenv(f"SELFDRAFT_{name}", value)
    with serving(shared_bundle) as opened:
        load = ("--url", opened.url, "--clients", "1", "--json")
        (record,) = lines(run("bench", "serve", *load, *FAST))
    assert record["slots"] == 2


def test_a_server_that_refuses_to_name_its_model_is_quoted(run: Any, shared_bundle: Path) -> None:
    with serving(shared_bundle, max_connections=1) as opened:
        address = loopback_address(opened.url)
        with socket.create_connection(address):
            result = run("bench", "serve", "--url", opened.url)
    assert result.exit_code == ConfigError.exit_code
    assert "answers /v1/models with 503: too many connections are open: 1 may be" in result.stderr


def test_a_wrong_key_is_told(run: Any, shared_bundle: Path) -> None:
    with serving(shared_bundle, api_key="secret") as opened:
        result = run("bench", "serve", "--url", opened.url, "--api-key", "wrong")
    assert result.exit_code == ConfigError.exit_code and "wants a key" in result.stderr


def test_a_server_that_cannot_start_says_why(
    run: Any, own_bundle: Path, monkeypatch: pytest.MonkeyPatch, process_environment: Any
) -> None:
    monkeypatch.setenv("PYTHONPATH", process_environment["PYTHONPATH"])
    next(own_bundle.glob("*.safetensors")).unlink()
    result = run("bench", "serve", own_bundle)
    assert result.exit_code == ConfigError.exit_code
    assert "the server did not start" in result.stderr and "safetensors" in result.stderr
