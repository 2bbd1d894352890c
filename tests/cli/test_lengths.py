"""``selfdraft lengths``: records in, statistics out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from support.reciting_bundle import write_manifest

from selfdraft.cli.length_records import read_generations
from selfdraft.cli.length_stats import step_chars
from selfdraft.manifest import GraphSpec, StateSpec, capacity_for, load_manifest


def generation(count: int, **changes: Any) -> dict[str, Any]:
    values = {
        "schema": "selfdraft.generation/2",
        "bundle": "nowhere",
        "text": "word",
        "prompt_token_ids": [1, 2, 3],
        "tokens": list(range(count)),
        "finish_reason": "eos",
        "steps": count - 1,
        "drafted": [],
        "accepted": [],
    }
    return values | changes


def write(path: Path, *records: dict[str, Any], indent: int | None = None) -> Path:
    path.write_text("".join(json.dumps(r, indent=indent) + "\n" for r in records))
    return path


@pytest.fixture
def stats(run: Any, tmp_path: Path) -> Any:
    """``stats(records, "--limit", 4)``: the figures of one file."""

    def measure(records: list[dict[str, Any]], *options: object) -> dict[str, Any]:
        path = write(tmp_path / "a.jsonl", *records)
        result = run("lengths", path, "--json", *options)
        assert result.exit_code == 0, result.stderr
        (found,) = json.loads(result.stdout)["files"]
        return dict(found)

    return measure


def test_reply_longer_than_the_limit_has_no_reward_and_one_at_it_has(stats: Any) -> None:
    found = stats([generation(n) for n in (3, 4, 5, 9)], "--limit", 4)
    assert (found["beyond"], found["beyond_share"], found["replies"]) == (2, 0.5, 4)


@pytest.mark.parametrize("reason", ["length", "context", "closed"])
def test_reply_cut_off_at_the_limit_counts_as_beyond_it(stats: Any, reason: str) -> None:
    records = [generation(4, finish_reason=reason), generation(3, finish_reason=reason)]
    found = stats(records, "--limit", 4)
    assert (found["beyond"], found["cut_off"], found["cut_off_share"]) == (1, 2, 1.0)


@pytest.mark.parametrize("reason", ["eos", "stop"])
def test_reply_that_ends_itself_is_not_cut_off(stats: Any, reason: str) -> None:
    found = stats([generation(4, finish_reason=reason)], "--limit", 4)
    assert (found["beyond"], found["cut_off"]) == (0, 0)


def test_limit_is_four_thousand_tokens_unless_told_otherwise(stats: Any) -> None:
    found = stats([generation(4000), generation(4001)])
    assert (found["limit"], found["beyond"]) == (4000, 1)


def test_lengths_are_summed_up_by_mean_median_ninth_tenth_and_maximum(stats: Any) -> None:
    found = stats([generation(n) for n in (1, 2, 3, 4, 5, 6, 7, 8, 19, 45)])
    assert found["mean_tokens"] == 10.0
    assert found["median_tokens"] == 5.5
    assert found["p90_tokens"] == 19
    assert found["max_tokens"] == 45


def test_steps_are_paragraphs_between_blank_lines() -> None:
    assert step_chars("one\ntwo\n\nthree\n \n\nfour  \n\n") == [7, 5, 4]
    assert step_chars("\n\n") == []


def test_spread_is_that_within_a_reply_not_between_replies(stats: Any) -> None:
    even = generation(3, text="aa\n\nbb")
    longer = generation(3, text="aaaa\n\nbbbb")
    uneven = generation(3, text="a\n\nbbb")
    single = generation(3, text="a")
    assert stats([even, longer, single])["step_spread"] == 0.0
    found = stats([uneven, even])
    assert found["step_spread"] == pytest.approx((0.5 + 0.0) / 2)
    assert (found["mean_steps"], found["mean_step_chars"]) == (2.0, 2.0)
    assert stats([single])["step_spread"] is None


def test_acceptance_is_that_of_all_drafts_together(stats: Any) -> None:
    found = stats(
        [generation(9, drafted=[4, 4], accepted=[3, 1]), generation(9, drafted=[2], accepted=[2])]
    )
    assert (found["drafted"], found["accepted"], found["acceptance_rate"]) == (10, 6, 0.6)
    assert stats([generation(9)])["acceptance_rate"] is None


def give_states(bundle: Path) -> None:
    """Graphs whose caches take 64 + 8 bytes a token."""
    shapes = {"k_cache": ("float32", (2, "capacity", 8)), "k_scale": ("float16", (4, "capacity"))}
    states = tuple(
        StateSpec(
            name=name,
            kind="kv",
            dtype=dtype,
            shape=("batch", *shape),
            input=name,
            output=f"{name}_out",
            aliased=True,
        )
        for name, (dtype, shape) in shapes.items()
    )
    graph = GraphSpec(file="backbone.onnx", inputs=(), outputs=(), taps=(), states=states)
    manifest = dataclasses.replace(load_manifest(bundle), graphs={"backbone": graph})
    write_manifest(bundle, manifest)


def test_kv_peak_is_the_caches_of_the_longest_prompt_and_reply(
    stats: Any, own_bundle: Path
) -> None:
    records = [generation(100, bundle=str(own_bundle)), generation(20, prompt_token_ids=[1] * 500)]
    assert stats(records[:1])["kv_peak_bytes"] is None, "a bundle without graphs"
    give_states(own_bundle)
    found = stats(records, "--bundle", own_bundle)
    wanted = capacity_for(520) * (64 + 8)
    assert (found["peak_tokens"], found["kv_peak_bytes"]) == (520, wanted)
    named = stats([generation(517, bundle=str(own_bundle))])
    assert named["kv_peak_bytes"] == wanted, "the bundle that the file names"


def test_missing_bundle_leaves_the_bytes_out_and_says_so(run: Any, tmp_path: Path) -> None:
    result = run("lengths", write(tmp_path / "a", generation(2)))
    assert result.exit_code == 0
    assert "no bytes of caches" in result.stderr and "--bundle" in result.stderr
    mixed = write(tmp_path / "b", generation(2), generation(2, bundle="elsewhere"))
    assert "mixes 2 bundles" in run("lengths", mixed).stderr


def test_indented_records_one_after_another_read_like_lines(tmp_path: Path) -> None:
    records = [generation(2), generation(3, thinking=None)]
    lines = read_generations(write(tmp_path / "lines", *records))
    assert read_generations(write(tmp_path / "indented", *records, indent=1)) == lines
    assert [g.num_tokens for g in lines] == [2, 3]


def test_records_of_generate_and_chat_are_read(
    run: Any, tmp_path: Path, shared_bundle: Path
) -> None:
    one = run("generate", shared_bundle, "hello", "--json", "--drafts", 1).stdout
    two = run("chat", shared_bundle, "--json", "--drafts", 1, input="hello\nhello\n").stdout
    path = tmp_path / "both.jsonl"
    path.write_text(one + two)
    result = run("lengths", path, "--json")
    assert result.exit_code == 0, result.stderr
    (found,) = json.loads(result.stdout)["files"]
    assert (found["replies"], found["mean_tokens"]) == (3, 14.0)
    assert 0 < found["acceptance_rate"] <= 1
    assert run("lengths", "-", input=one).exit_code == 0


def test_second_file_is_compared_with_the_first_prompt_by_prompt(run: Any, tmp_path: Path) -> None:
    first = write(
        tmp_path / "a",
        *(generation(n, prompt_token_ids=[p]) for n, p in ((8, 1), (12, 1), (10, 2), (7, 3))),
    )
    second = write(
        tmp_path / "b", *(generation(n, prompt_token_ids=[p]) for n, p in ((5, 1), (20, 2), (1, 4)))
    )
    record = json.loads(run("lengths", first, second, "--json").stdout)
    assert record["pairs"] == {"prompts": 2, "shorter": 1, "mean_ratio": (0.5 + 2.0) / 2}
    assert [f["mean_tokens"] for f in record["files"]] == [9.25, pytest.approx(26 / 3)]
    text = run("lengths", first, second, "--limit", 9).stdout
    assert "change" in text and "-6.3%" in text and "-16.7 points" in text
    assert "2 prompts in both" in text and "1.25 times as long" in text
    apart = write(tmp_path / "c", generation(3, prompt_token_ids=[9]))
    assert "no prompt is in both files" in run("lengths", first, apart).stdout


def thinking(budget: int, temperature: float, **flags: bool) -> dict[str, Any]:
    flags = {"triggered": False, "violated": False, "closed": True} | flags
    counts = {"thinking_tokens": 3, "forced_tokens": 0, "completing_tokens": 0}
    return {"budget": budget, "temperature": temperature, **counts, **flags}


def test_thinking_budgets_are_summed_up_by_level_and_temperature(run: Any, tmp_path: Path) -> None:
    records = [
        generation(5, thinking=thinking(64, 0.0, triggered=True)),
        generation(5, thinking=thinking(64, 0.0)),
        generation(5, thinking=thinking(64, 1.0, violated=True)),
        generation(5, thinking=thinking(0, 0.0, triggered=True)),
        generation(5, thinking=None),
    ]
    path = write(tmp_path / "a", *records)
    (found,) = json.loads(run("lengths", path, "--json").stdout)["files"]
    rates = [(r["budget"], r["temperature"], r["replies"]) for r in found["thinking"]]
    assert rates == [(0, 0.0, 1), (64, 0.0, 2), (64, 1.0, 1)]
    assert [r["trigger_rate"] for r in found["thinking"]] == [1.0, 0.5, 0.0]
    assert [r["violation_rate"] for r in found["thinking"]] == [0.0, 0.0, 1.0]
    assert "triggered" in run("lengths", path).stdout
    assert "triggered" not in run("lengths", write(tmp_path / "b", generation(5))).stdout


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "holds no generation"),
        ("{}\n", "its schema is None"),
        ('{"schema": "selfdraft.lengths/1"}', "its schema is 'selfdraft.lengths/1'"),
        ("[1]", "its schema is None"),
        ('{"schema": "selfdraft.generation/2"', "line 1: no JSON"),
        (json.dumps(generation(2)) + "\n\nnonsense", "line 3: no JSON"),
        (json.dumps(generation(2) | {"tokens": "x"}), "record 1.tokens: expected a list"),
        (json.dumps({k: v for k, v in generation(2).items() if k != "text"}), "missing key 'text'"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_files_of_something_else_are_refused(
    run: Any, tmp_path: Path, content: str, problem: str
) -> None:
    path = tmp_path / "bad"
    path.write_text(content)
    result = run("lengths", path)
    assert result.exit_code == 2 and problem in result.stderr, result.stderr


def test_unreadable_files_are_refused(run: Any, tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    assert "not UTF-8 at byte 0" in run("lengths", binary).stderr
    assert run("lengths", tmp_path / "absent").exit_code == 2
