"""``selfdraft plan`` and ``advise``: what is told, that it adds up, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from support.bench_lines import as_lines, bench_line
from support.checkpoints import write_checkpoint
from support.reciting_bundle import write_reciting_bundle

from selfdraft.cli.attention_facts import bytes_by_kind
from selfdraft.cli.weight_sizes import bytes_by_part
from selfdraft.jetson.planner.advice_table import decision_table
from selfdraft.manifest import load_manifest


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planned") / "random"
    return write_checkpoint(folder, "qwen3", mtp="qwen", context=131_072)


def record(result: Any) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    return dict(json.loads(result.stdout))


def test_exported_bytes_are_those_of_the_bundle(run: Any, shared_bundle: Path) -> None:
    exported = record(run("plan", shared_bundle, "--json"))["exported"]
    manifest = load_manifest(shared_bundle)
    assert exported["basis"] == "exact"
    assert exported["weight_bytes"] == bytes_by_part(shared_bundle, manifest)


def test_exported_bytes_of_a_sparse_int8_bundle(run: Any, sparse_bundle: Path) -> None:
    exported = record(run("plan", sparse_bundle, "--json"))["exported"]
    manifest = load_manifest(sparse_bundle)
    assert exported["weight_bytes"] == bytes_by_part(sparse_bundle, manifest)
    kinds = {name: bytes_by_kind(g, context=2048) for name, g in manifest.graphs.items()}
    assert exported["state_bytes"] == kinds and "summary" in kinds["backbone"]


def test_table_ends_with_the_context_asked_for(run: Any, checkpoint: Path) -> None:
    plan = record(run("plan", checkpoint, "--context", 20_000, "--json"))
    assert [row["context"] for row in plan["contexts"]] == [4096, 8192, 16_384, 20_000]
    rooms = [row["memory"]["head_room_bytes"] for row in plan["contexts"]]
    assert rooms == sorted(rooms, reverse=True)
    speeds = [row["speed"]["tok_per_s"] for row in plan["contexts"]]
    assert speeds == sorted(speeds, reverse=True)
    assert [bool(row["sparse"]) for row in plan["contexts"]] == [False, True, True, True]


def test_every_figure_names_its_basis(run: Any, checkpoint: Path) -> None:
    plan = record(run("plan", checkpoint, "--json"))
    for row in plan["contexts"]:
        assert row["speed"]["basis"] == "estimate"
        assert {p["source"] for p in row["memory"]["parts"]} == {"exact", "estimate"}
        assert row["memory"]["available_basis"] == "estimate"
    assert plan["device"]["efficiencies"]["basis"] == "estimate"
    assert "not been measured" in plan["basis"].replace("has not", "not")


def test_measured_memory_is_told_apart(run: Any, checkpoint: Path) -> None:
    plan = record(run("plan", checkpoint, "--available", 5.5, "--json"))
    memory = plan["contexts"][-1]["memory"]
    assert memory["available_basis"] == "measured"
    assert memory["available_bytes"] == int(5.5 * 2**30)


def test_drafts_and_acceptance_make_the_tokens_of_a_step(run: Any, checkpoint: Path) -> None:
    options = ("--drafts", 2, "--acceptance", "0.5,0.5", "--json")
    speed = record(run("plan", checkpoint, *options))["contexts"][0]["speed"]
    assert speed["tokens_per_step"] == pytest.approx(1.75)
    none = record(run("plan", checkpoint, "--drafts", 0, "--json"))["contexts"][0]["speed"]
    assert none["speculative_tok_per_s"] is None and none["tokens_per_step"] is None


def test_a_slower_power_mode_is_slower(run: Any, checkpoint: Path) -> None:
    def speed(mode: str) -> float:
        plan = record(run("plan", checkpoint, "--power", mode, "--json"))
        return float(plan["contexts"][0]["speed"]["tok_per_s"])

    assert speed("MODE_15W") < speed("MODE_30W") < speed("MAXN")


def test_text_marks_estimates_and_warns_of_the_mode_after_flashing(
    run: Any, checkpoint: Path
) -> None:
    result = run("plan", checkpoint)
    assert result.exit_code == 0, result.stderr
    text = result.stdout
    assert "≈" in text and "after flashing the board is in MODE_30W" in text
    assert "nvpmodel -m 0" in text and "sparse tok/s" in text and "estimates" in text
    exact = next(line for line in text.splitlines() if line.strip().startswith("backbone"))
    assert "≈" not in exact


def test_what_does_not_fit_ends_with_code_4_and_what_would_help(run: Any, checkpoint: Path) -> None:
    options = ("--device", "orin-nano-8", "--available", 0.82, "--weights", "fp16")
    result = run("plan", checkpoint, *options)
    assert result.exit_code == 4
    assert "does not fit" in result.stderr and "hint: add --" in result.stderr
    assert "what would help" in result.stdout and "--kv int8" in result.stdout
    fitting = next(line for line in result.stdout.splitlines() if " --context " in line)
    length = int(fitting.split()[1])
    again = run("plan", checkpoint, *options, "--context", length)
    assert again.exit_code == 0, again.stderr
    longer = run("plan", checkpoint, *options, "--context", length + 64)
    assert longer.exit_code == 4


def test_a_remedy_that_is_hinted_at_is_enough(run: Any, checkpoint: Path) -> None:
    options = ("--device", "orin-nano-8", "--available", 0.82, "--weights", "fp16")
    hint = run("plan", checkpoint, *options).stderr.rpartition("hint: add ")[2].split()
    assert run("plan", checkpoint, *options, *hint).exit_code == 0


@pytest.mark.parametrize(
    "options, message",
    [
        (("--device", "agx-orin-63"), "did you mean 'agx-orin-64'"),
        (("--power", "MAXM"), "did you mean 'MAXN'"),
        (("--weights", "int8"), "choose fp16 or int4"),
        (("--kv", "fp32"), "choose fp16 or int8"),
        (("--head", "fp8"), "choose fp16 or int4"),
        (("--context", 131_073), "holds 131072 tokens"),
        (("--acceptance", "1.5"), "--acceptance has 1.5"),
        (("--draft-vocab", 288), "not below the vocabulary"),
    ],
)
def test_options_that_cannot_be(run: Any, checkpoint: Path, options: Any, message: str) -> None:
    result = run("plan", checkpoint, *options)
    assert result.exit_code == 2 and message in result.stderr


@pytest.mark.parametrize("options", [("--drafts", 1), ("--draft-vocab", 100)])
def test_drafts_need_a_head(run: Any, tmp_path: Path, options: Any) -> None:
    bundle = write_reciting_bundle(tmp_path / "b", mtp=False)
    result = run("plan", bundle, *options)
    assert result.exit_code == 2 and "no MTP head" in result.stderr


def test_advice_names_strategy_figures_reason_and_what_is_not_there(
    run: Any, checkpoint: Path
) -> None:
    advice = record(run("advise", checkpoint, "--context", 4096, "--json"))
    assert advice["strategy"] == "mtp" and advice["chosen"]["drafts"] >= 1
    assert advice["options"][:2] == ["--drafts", str(advice["chosen"]["drafts"])]
    assert advice["chosen"]["basis"] == "estimate" and advice["why"]
    assert advice["attention"] == "full" and advice["facts"]["sparse_pays"] is False
    assert {entry["name"] for entry in advice["not_there"]} >= {"EAGLE", "Medusa"}
    assert all(entry["extra_bytes"] > 0 for entry in advice["not_there"])


def test_long_contexts_get_sparse_attention_unless_it_is_ruled_out(
    run: Any, checkpoint: Path
) -> None:
    assert record(run("advise", checkpoint, "--json"))["attention"] == "sparse"
    exact = record(run("advise", checkpoint, "--exact-attention", "--json"))
    assert exact["attention"] == "full" and exact["facts"]["sparse_pays"] is True


@pytest.mark.parametrize(
    "options, strategy",
    [
        (("--goal", "throughput", "--sampled"), "batched"),
        (("--goal", "quality", "--offline"), "beam"),
        (("--goal", "quality"), "mtp"),
        (("--acceptance", "0.01"), "greedy"),
        (("--acceptance", "0.01", "--sampled"), "sampling"),
    ],
)
def test_strategy_follows_the_need(run: Any, checkpoint: Path, options: Any, strategy: str) -> None:
    advice = record(run("advise", checkpoint, "--context", 4096, *options, "--json"))
    assert advice["strategy"] == strategy


@pytest.mark.parametrize("output", ["deterministic", "sampled"])
@pytest.mark.parametrize(
    "name", [s.name for s in decision_table().strategies if s.command == "generate"]
)
def test_options_of_every_strategy_run(
    run: Any, shared_bundle: Path, name: str, output: Literal["deterministic", "sampled"]
) -> None:
    words = decision_table().strategy(name).words(output, drafts=2, batch=3)
    done = run("generate", shared_bundle, "hi", *words, "--max-tokens", 8)
    assert done.exit_code == 0, done.stderr
    assert ("beams in" in done.stderr) == (name == "beam")
    assert ("accepted" in done.stderr) == (name == "mtp")


def test_long_greedy_replies_are_told_a_repetition_penalty(run: Any, checkpoint: Path) -> None:
    advice = record(run("advise", checkpoint, "--acceptance", "0.01", "--json"))
    assert advice["options"][-2:] == ["--repetition-penalty", "1.1"]


def test_batched_decoding_is_to_be_had_from_the_server(run: Any, checkpoint: Path) -> None:
    options = ("--context", 4096, "--goal", "throughput")
    advice = record(run("advise", checkpoint, *options, "--json"))
    slots = str(advice["chosen"]["batch"])
    assert (advice["command"], advice["options"][:2]) == ("serve", ["--slots", slots])
    text = run("advise", checkpoint, *options).stdout
    assert f"selfdraft serve BUNDLE --slots {slots} --drafts 0" in text


def test_a_model_without_a_head_is_never_told_to_draft(run: Any, tmp_path: Path) -> None:
    bundle = write_reciting_bundle(tmp_path / "b", mtp=False)
    advice = record(run("advise", bundle, "--json"))
    assert advice["strategy"] == "greedy" and advice["drafts_gain"] is None
    assert "mtp" not in {option["strategy"] for option in advice["considered"]}


def test_measured_speeds_take_the_place_of_planned_ones(
    run: Any, checkpoint: Path, tmp_path: Path
) -> None:
    file = tmp_path / "bench.jsonl"
    file.write_text(as_lines(bench_line(0, 20.0), bench_line(1, 30.0), bench_line(2, 28.0)))
    advice = record(run("advise", checkpoint, "--measured", file, "--json"))
    assert advice["strategy"] == "mtp" and advice["chosen"]["drafts"] == 1
    assert advice["chosen"]["tok_per_s"] == 30 and advice["chosen"]["basis"] == "measured"
    assert advice["drafts_gain"] == pytest.approx(1.5)
    file.write_text(as_lines(bench_line(0, 20.0), bench_line(1, 19.0)))
    losing = record(run("advise", checkpoint, "--measured", file, "--json"))
    assert losing["strategy"] == "greedy" and losing["chosen"]["tok_per_s"] == 20


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "is empty"),
        ("{", "line 1"),
        (as_lines(bench_line(1)), "no plain run"),
        (as_lines(bench_line(0, synthetic=True)), "forced acceptance"),
        (as_lines(bench_line(0, valid=False)), "an invalid run"),
    ],
)
def test_measured_speeds_that_cannot_be_used(
    run: Any, checkpoint: Path, tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "bench.jsonl"
    file.write_text(content)
    result = run("advise", checkpoint, "--measured", file)
    assert result.exit_code == 2 and message in result.stderr


def test_advice_for_people(run: Any, checkpoint: Path) -> None:
    result = run("advise", checkpoint)
    assert result.exit_code == 0, result.stderr
    assert "self-speculation with the MTP head (K = " in result.stdout
    assert "considered" in result.stdout and "not in selfdraft" in result.stdout
    assert "export it with --attention sparse" in result.stdout and "≈" in result.stdout


@pytest.mark.parametrize("command", ["plan", "advise"])
def test_what_is_no_folder_is_told_what_would_do(run: Any, tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("")
    for name, problem in (("file", "is a file"), ("missing", "is not there")):
        result = run(command, tmp_path / name)
        assert result.exit_code == 2 and f"{name} {problem}" in result.stderr
        assert "a bundle or a checkpoint, or a hub name" in result.stderr


def test_shares_that_are_no_numbers_are_shown_how_they_look(run: Any, checkpoint: Path) -> None:
    result = run("plan", checkpoint, "--acceptance", "much")
    assert result.exit_code == 2 and "give numbers: 0.9,0.7" in result.stderr
