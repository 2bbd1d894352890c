"""What attention read stands in every record and in every summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.sparse_bundle import write_sparse_reciter

from selfdraft.errors import ConfigError

LONG = ("x" * 400, "--raw", "--drafts", 0, "--max-tokens", 5)
"""Four steps behind 400 tokens: 7 blocks in use, of which the bundle reads 5."""


@pytest.fixture(scope="module")
def reciter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sparse_reciter(tmp_path_factory.mktemp("attention") / "reciter")


def test_generate_records_what_was_read(run: Any, reciter: Path) -> None:
    result = run("generate", reciter, *LONG, "--json")
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["attention"] == {
        "mode": "sparse",
        "steps": 4,
        "rows": 4,
        "blocks_read": 20,
        "blocks_in_use": 28,
        "share": 20 / 28,
    }
    assert record["audit"] == []


def test_generate_audits_every_nth_step(run: Any, reciter: Path) -> None:
    record = json.loads(run("generate", reciter, *LONG, "--json", "--audit-every", 2).stdout)
    assert [point["position"] for point in record["audit"]] == [400, 402]
    assert all(point == {**point, "kl": 0.0, "same_top": True} for point in record["audit"])
    assert all((p["blocks_read"], p["blocks_in_use"]) == (5, 7) for p in record["audit"])
    told = run("generate", reciter, *LONG, "--audit-every", 2).stderr
    assert "audited 2 steps: mean KL to dense 0.00e+00 nats, same likeliest token in 2" in told
    assert "in 2, 10 of 14 blocks read" in told
    short = run("generate", reciter, "x", *LONG[1:], "--audit-every", 2).stderr
    assert "same likeliest token in 2, nothing was left out" in short


def test_audit_of_a_dense_bundle_is_refused(run: Any, shared_bundle: Path) -> None:
    result = run("generate", shared_bundle, "hello", "--audit-every", 2)
    assert result.exit_code == ConfigError.exit_code
    assert "every layer of this bundle is dense" in result.stderr


def test_summary_tells_the_share(run: Any, reciter: Path, shared_bundle: Path) -> None:
    assert "sparse, 71 % of the blocks read\n" in run("generate", reciter, *LONG).stderr
    short = run("generate", reciter, "x", "--raw", "--max-tokens", 5).stderr
    assert "sparse, 100 % of the blocks read: the budget covers all tokens so far" in short
    dense = run("generate", shared_bundle, "x", "--raw", "--max-tokens", 5)
    assert dense.exit_code == 0 and "blocks" not in dense.stderr


def test_chat_stats_tell_the_share(run: Any, reciter: Path) -> None:
    result = run("chat", reciter, "--max-tokens", 5, input="hello " * 80 + "\n/stats\n")
    assert result.exit_code == 0, result.stderr
    assert "attention: sparse, " in result.stderr and " % of the blocks read" in result.stderr


def test_chat_audits_as_generate_does(run: Any, reciter: Path) -> None:
    said = "hello " * 80 + "\nhello\n/stats\n"
    options = ("--drafts", 0, "--max-tokens", 5, "--audit-every", 2)
    told = run("chat", reciter, *options, input=said)
    assert told.exit_code == 0, told.stderr
    assert (
        told.stderr.count("audited 2 steps: mean KL to dense") == 3
    )  # replies, and the last again
    assert "audited 4 steps: mean KL to dense" in told.stderr  # /stats
    records = run("chat", reciter, *options, "--json", input=said).stdout.splitlines()
    points = [json.loads(record)["audit"] for record in records]
    assert [len(reply) for reply in points] == [2, 2]
    assert all(p["blocks_read"] < p["blocks_in_use"] for reply in points for p in reply)


def test_chat_audit_of_a_dense_bundle_is_refused(run: Any, shared_bundle: Path) -> None:
    result = run("chat", shared_bundle, "--audit-every", 2, input="hello\n")
    assert result.exit_code == ConfigError.exit_code
    assert "every layer of this bundle is dense" in result.stderr


def test_bench_records_what_was_read(run: Any, reciter: Path) -> None:
    arguments = ("--context", 400, "--tokens", 5, "--repeats", 1, "--warmup", 0, "--json")
    result = run("bench", reciter, *arguments)
    assert result.exit_code == 0, result.stderr
    plain = json.loads(result.stdout.splitlines()[0])
    assert plain["attention"]["mode"] == "sparse" and plain["attention"]["share"] == 20 / 28
