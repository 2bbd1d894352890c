"""``selfdraft bench``: what a line holds, and that forced figures say so. No time is judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from selfdraft.cli.bench_schema import BenchLine
from selfdraft.cli.measure import spread
from selfdraft.strict import record_from_json

FAST = ("--tokens", 12, "--repeats", 2, "--warmup", 1)


def lines(result: Any) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_plain_always_runs_and_comes_first(run: Any, shared_bundle: Path) -> None:
    records = lines(run("bench", shared_bundle, "--drafts", "2,1", *FAST, "--json"))
    assert [r["drafts"] for r in records] == [0, 2, 1]
    assert records[0]["speedup"] == 1.0 and records[0]["tokens_per_step"] == 1.0
    assert all(not r["synthetic"] and r["forced_acceptance"] is None for r in records)


def test_counts_are_those_of_the_counted_rounds(run: Any, shared_bundle: Path) -> None:
    plain, speculative = lines(run("bench", shared_bundle, *FAST, "--json"))
    assert plain["steps"] == 2 * 11
    (first,) = speculative["acceptance"]
    assert first["accepted"] == 2 * 11 - speculative["steps"]
    assert speculative["tokens_per_step"] == pytest.approx(22 / speculative["steps"])


def test_every_field_of_a_line(run: Any, shared_bundle: Path) -> None:
    record = lines(run("bench", shared_bundle, *FAST, "--json"))[1]
    assert record["schema"] == "selfdraft.bench/2"
    assert record["prompt_source"] == "example" and record["backend"] == "reference"
    assert len(record["bundle_sha256"]) == 64
    assert (record["tokens"], record["repeats"], record["warmup"]) == (12, 2, 1)
    for name in ("step_ms", "engine_ms", "loop_overhead_us", "tok_per_s"):
        found = record[name]
        assert 0 < found["p10"] <= found["median"] <= found["p90"]
    assert record["step_ms"]["median"] > record["engine_ms"]["median"]
    assert record["peak_rss_bytes"] > record["state_bytes"] > 0
    unmeasured = ("watts", "joules_per_token", "temperature_c", "gpu_mhz", "emc_mhz", "valid")
    unmeasured += ("peak_ram_bytes", "roofline_share", "power_mode", "clocks_locked", "tensorrt")
    assert all(record[name] is None for name in unmeasured)
    assert record_from_json(BenchLine, record).drafts == 1, "what is written can be read"


def test_forced_acceptance_is_marked_synthetic(run: Any, shared_bundle: Path) -> None:
    options = ("--drafts", "2", "--force-acceptance", "1,0", *FAST, "--json")
    plain, forced = lines(run("bench", shared_bundle, *options))
    assert not plain["synthetic"] and forced["synthetic"]
    assert forced["forced_acceptance"] == [1.0, 0.0]
    first, second = forced["acceptance"]
    assert first["accepted"] == first["drafted"] > 0
    assert second["accepted"] == 0 < second["drafted"]


def test_context_cuts_and_repeats_the_prompt(run: Any, shared_bundle: Path) -> None:
    options = ("--context", "5,100", "--drafts", "1", *FAST, "--json")
    records = lines(run("bench", shared_bundle, *options))
    assert [r["context"] for r in records] == [5, 5, 100, 100]
    assert records[0]["prompt_source"] == "example, cut"
    assert records[2]["prompt_source"] == "example, repeated"


@pytest.mark.parametrize("source", ["prompt", "file"])
def test_prompt_of_ones_own(run: Any, shared_bundle: Path, tmp_path: Path, source: str) -> None:
    path = tmp_path / "text.txt"
    path.write_text("x")
    options = ("--prompt", "hi") if source == "prompt" else ("--prompt-file", path)
    record = lines(run("bench", shared_bundle, *options, *FAST, "--json"))[0]
    assert record["prompt_source"] == source
    assert (record["context"] == 1) == (source == "file")


def test_table_has_a_row_for_each_series(run: Any, shared_bundle: Path) -> None:
    result = run("bench", shared_bundle, "--drafts", "1,3", *FAST)
    machine, header, *rows = result.stdout.splitlines()
    assert "reference" in machine and "× plain" in header and len(rows) == 3


def test_bundle_without_head_measures_plain_only(run: Any, tmp_path: Path) -> None:
    from support.reciting_bundle import write_reciting_bundle

    bundle = write_reciting_bundle(tmp_path / "b", mtp=False)
    assert [r["drafts"] for r in lines(run("bench", bundle, *FAST, "--json"))] == [0]


@pytest.mark.parametrize(
    ("options", "code", "part"),
    [
        (["--drafts", "1,x"], 2, "--drafts is '1,x'"),
        (["--drafts", "9"], 2, "--drafts has 9"),
        (["--force-acceptance", "0.5", "--drafts", "2"], 2, "has 1 values for 2 drafts"),
        (["--force-acceptance", "1.5"], 2, "--force-acceptance has 1.5"),
        (["--context", "0"], 2, "--context has 0"),
        (["--context", "250", "--tokens", "12"], 4, "250 prompt tokens and 12 more"),
        (["--prompt", "a", "--prompt-file", "b"], 2, "both given"),
        (["--prompt-file", "no-such-file"], 2, "no-such-file cannot be read"),
    ],
)
def test_wrong_options_are_refused(
    run: Any, shared_bundle: Path, options: list[str], code: int, part: str
) -> None:
    result = run("bench", shared_bundle, *options)
    assert result.exit_code == code and part in result.stderr


def test_spread_is_the_median_with_the_tenth_and_ninetieth_percentile() -> None:
    values = [float(v) for v in range(100, -1, -1)]
    assert spread(values) == {"median": 50.0, "p10": 10.0, "p90": 90.0}
    assert spread([2.0, 4.0], scale=1e3) == {"median": 3000.0, "p10": 2200.0, "p90": 3800.0}
