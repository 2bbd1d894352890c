"""``--telemetry`` and ``--task`` of generate and chat; alerts on stderr and in JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from selfdraft.runtime.telemetry import alerts, meter


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def touchy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An alert for everything below 100 %, from the fourth first draft on."""
    policy = alerts.AlertPolicy(global_floor=1.0, task_floor=1.0, least_drafts=4)
    monkeypatch.setattr(meter, "AlertPolicy", lambda: policy)


def test_generate_writes_a_line_a_reply_with_its_window(
    run: Any, shared_bundle: Path, tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    options = ("--drafts", 2, "--task", "recital", "--telemetry", path)
    for _ in range(2):
        assert run("generate", shared_bundle, "hello", *options).exit_code == 0
    first, second = _lines(path)
    assert first["schema"] == "selfdraft.telemetry/1" and first["event"] == "reply"
    assert (first["task"], first["num_tokens"]) == ("recital", 14)
    window = first["window"]["by_task"]["recital"]
    assert window["spec_decode_num_draft_tokens_per_pos"] == [
        count for count in first["spec_decode_num_draft_tokens_per_pos"] if count
    ]
    assert window["num_tokens"] == 13, "the first token comes from the prefill"
    assert second["window"]["total"]["num_steps"] == first["window"]["total"]["num_steps"]


def test_chat_counts_all_its_replies_in_one_window(
    run: Any, shared_bundle: Path, tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    options = ("--drafts", 1, "--json", "--telemetry", path)
    result = run("chat", shared_bundle, *options, input="hello\nhello\n")
    replies = [json.loads(line) for line in result.stdout.splitlines()]
    steps = [reply["telemetry"]["total"]["num_steps"] for reply in replies]
    assert steps[1] == 2 * steps[0]
    assert [line["window"]["total"]["num_steps"] for line in _lines(path)] == steps
    assert replies[0]["telemetry"]["alerts"] == []


def test_prometheus_file_is_replaced_and_has_vllms_names(
    run: Any, shared_bundle: Path, tmp_path: Path
) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="the extra metrics")
    path = tmp_path / "selfdraft.prom"
    options = ("--drafts", 2, "--task", "recital", "--telemetry", path, "--json")
    reply = json.loads(run("generate", shared_bundle, "hello", *options).stdout)
    families = {f.name: f for f in parser.text_string_to_metric_families(path.read_text())}

    def total(name: str) -> float:
        return sum(sample.value for sample in families[f"selfdraft:{name}"].samples)

    assert total("spec_decode_num_draft_tokens") == sum(reply["drafted"])
    assert total("spec_decode_num_accepted_tokens") == sum(reply["accepted"])
    assert total("decode_tokens") == len(reply["tokens"]) - 1
    samples = families["selfdraft:spec_decode_num_accepted_tokens_per_pos"].samples
    by_position = {"0": 0.0, "1": 0.0}
    for sample in samples:
        assert sample.name == "selfdraft:spec_decode_num_accepted_tokens_per_pos_total"
        assert (sample.labels["task"], sample.labels["mode"]) == ("recital", "greedy")
        by_position[sample.labels["position"]] += sample.value
    assert list(by_position.values()) == reply["accepted"]
    assert list(tmp_path.iterdir()) == [path]


def test_prometheus_text_without_its_library_is_refused_before_anything_runs(
    run: Any, shared_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    result = run("generate", shared_bundle, "hello", "--telemetry", tmp_path / "x.prom")
    assert result.exit_code == 2 and result.stdout == ""
    assert "prometheus-client" in result.stderr and "selfdraft[metrics]" in result.stderr
    assert run("generate", shared_bundle, "hello", "--telemetry", tmp_path / "x").exit_code == 0


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_place_that_cannot_be_written_is_refused_before_anything_runs(
    run: Any, shared_bundle: Path, tmp_path: Path, command: str
) -> None:
    path = tmp_path / "missing" / "t.jsonl"
    arguments = ("hello",) if command == "generate" else ()
    result = run(command, shared_bundle, *arguments, "--telemetry", path, input="hello\n")
    assert result.exit_code == 4 and result.stdout == ""
    assert "cannot be written" in result.stderr


@pytest.mark.usefixtures("touchy")
def test_alerts_show_on_stderr_in_json_and_in_the_file(
    run: Any, shared_bundle: Path, tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    options = ("--drafts", 1, "--telemetry", path, "--task", "recital")
    result = run("generate", shared_bundle, "hello", "--temperature", 2, "--seed", 4, *options)
    assert "alert: first drafts accepted" in result.stderr
    assert "alert: task recital: first drafts accepted" in result.stderr
    assert [line["event"] for line in _lines(path)] == ["alert", "alert", "reply"]
    assert _lines(path)[0]["raised"] is True
    told = run("chat", shared_bundle, "--json", "--temperature", 2, *options, input="hello\n")
    found = json.loads(told.stdout)["telemetry"]["alerts"]
    assert [alert["kind"] for alert in found] == ["global", "task"]
    assert found[0]["rate"] < found[0]["limit"] == 1.0
    shown = run("chat", shared_bundle, "--temperature", 2, *options, input="hello\n/stats\n")
    assert shown.stderr.count("alert: task recital") == 2, "after the reply, and in /stats"


def test_task_goes_with_a_reply_that_is_resumed(
    run: Any, shared_bundle: Path, tmp_path: Path
) -> None:
    cache, path = tmp_path / "cache", tmp_path / "t.jsonl"
    stopped = ("--every", 4, "--max-chunks", 1, "--save-cache", cache, "--task", "recital")
    assert run("generate", shared_bundle, "hello", *stopped).exit_code == 0
    resumed = ("--resume", "--load-cache", cache, "--telemetry", path)
    assert run("generate", shared_bundle, *resumed).exit_code == 0
    assert _lines(path)[0]["task"] == "recital"


def test_refused_request_leaves_no_file_and_an_old_one_as_it_was(
    run: Any, shared_bundle: Path, tmp_path: Path
) -> None:
    new, old = tmp_path / "new.jsonl", tmp_path / "old.jsonl"
    old.write_text("{}\n")
    for path in (new, old):
        result = run("generate", shared_bundle, "hello " * 4000, "--telemetry", path)
        assert result.exit_code == 4, result.stderr
    assert not new.exists() and old.read_text() == "{}\n"


def test_wrong_label_is_refused(run: Any, shared_bundle: Path) -> None:
    result = run("generate", shared_bundle, "hello", "--task", "x" * 65)
    assert result.exit_code == 2 and "printable characters" in result.stderr
