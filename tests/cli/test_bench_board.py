"""``selfdraft bench`` on a board, imitated: readings, validity, and what is done with the lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.bench_lines import as_lines, bench_line, spread
from support.fake_board import FakeBoard, board_sample, fake_device

from selfdraft.cli import bench as bench_module
from selfdraft.cli import bench_filled_record, bench_serve_record
from selfdraft.cli.board_meter import (
    BoardRun,
    board_readings,
    invalid_reasons,
    roofline_share,
    watched,
)
from selfdraft.jetson.sampler import TimedSample

FAST = ("--tokens", 12, "--repeats", 2, "--warmup", 1, "--warmup-seconds", 0)


def timed(*samples: Any) -> tuple[TimedSample, ...]:
    return tuple(TimedSample(at_s=float(i), sample=sample) for i, sample in enumerate(samples))


@pytest.fixture
def on_board(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """``on_board(samples, mode=…)``: what ``bench`` finds is this board."""

    def install(*samples: Any, mode: str = "MAXN", **options: Any) -> None:
        device = fake_device(tmp_path / "root", mode=mode)
        board = FakeBoard(device, samples, **options)
        monkeypatch.setattr(bench_module, "live_board", lambda: board)

    return install


def lines(result: Any) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_readings_of_a_run_on_a_board(run: Any, shared_bundle: Path, on_board: Any) -> None:
    on_board(board_sample())
    plain, drafted = lines(run("bench", shared_bundle, *FAST, "--json"))
    assert plain["device"] == "Jetson AGX Orin 64 GB" and plain["power_mode"] == "MAXN"
    assert plain["clocks_locked"] is not False and plain["asked_mode"] is None
    for record in (plain, drafted):
        assert record["watts"] == pytest.approx(30.0)
        tokens, seconds = 2 * 11, record["joules_per_token"] * 2 * 11 / 30
        assert record["joules_per_token"] == pytest.approx(30 * seconds / tokens)
        assert record["roofline_share"] == pytest.approx(record["gb_per_s"] / 204.736)


def test_another_mode_than_the_one_asked_for_is_invalid(
    run: Any, shared_bundle: Path, on_board: Any
) -> None:
    on_board(board_sample(), mode="MODE_30W")
    result = run("bench", shared_bundle, *FAST, "--power", "MAXN", "--json")
    record = lines(result)[0]
    assert record["valid"] is False
    assert record["invalid_reasons"] == ["the power mode is MODE_30W, MAXN was asked for"]
    assert "invalid run: the power mode is MODE_30W" in result.stderr


def test_over_current_during_the_run_is_invalid(
    run: Any, shared_bundle: Path, on_board: Any
) -> None:
    on_board(board_sample(), throttling=({"oc1": 3, "oc2": 0}, {"oc1": 3, "oc2": 1}))
    record = lines(run("bench", shared_bundle, *FAST, "--json"))[0]
    assert record["invalid_reasons"] == ["over-current event oc2"]


def board_run(tmp_path: Path, *samples: Any, asked: str | None = None, **options: Any) -> BoardRun:
    return BoardRun(
        device=fake_device(tmp_path, **options), asked_mode=asked, samples=timed(*samples)
    )


def test_energy_is_that_of_the_spans_alone(tmp_path: Path) -> None:
    watts = (10.0, 10.0, 50.0, 50.0, 10.0)
    run = board_run(tmp_path, *(board_sample(watts=w) for w in watts))
    found = board_readings(run, [(2.0, 3.0)], tokens=25)
    assert found["watts"] == pytest.approx(50.0)
    assert found["joules_per_token"] == pytest.approx(50 / 25)
    both = board_readings(run, [(0.0, 1.0), (2.0, 3.0)], tokens=30)
    assert both["joules_per_token"] == pytest.approx(60 / 30)
    assert both["watts"] == pytest.approx(30.0)


def test_highest_temperature_and_memory_inside_the_spans(tmp_path: Path) -> None:
    samples = [board_sample(celsius=c, ram=c * 2**20) for c in (90, 50, 60, 55, 95)]
    found = board_readings(board_run(tmp_path, *samples), [(1.0, 3.0)], tokens=1)
    assert found["temperature_c"] == 60 and found["peak_ram_bytes"] == 60 * 2**20
    assert found["emc_mhz"]["median"] == 3199


def test_a_clock_that_fell_inside_the_spans_is_invalid(tmp_path: Path) -> None:
    samples = [board_sample(gpu_mhz=m) for m in (306, 1300, 1300, 900, 1300, 306)]
    run = board_run(tmp_path, *samples)
    fell = board_readings(run, [(1.0, 4.0)], tokens=1)
    assert fell["invalid_reasons"] == ["the GPU clock fell to 900 MHz of 1300"]
    assert fell["gpu_mhz"]["median"] == 1300
    assert board_readings(run, [(1.0, 2.0)], tokens=1)["valid"] is True, "idle clocks do not count"


def test_a_clock_that_never_reached_the_modes_own_is_invalid(tmp_path: Path) -> None:
    run = board_run(tmp_path, board_sample(gpu_mhz=624))
    assert invalid_reasons(run, [board_sample(gpu_mhz=624)]) == [
        "the GPU clock fell to 624 MHz of 1300"
    ]


def test_without_rails_or_sensors_readings_are_null_not_zero(tmp_path: Path) -> None:
    from selfdraft.jetson.sample import BoardSample

    found = board_readings(board_run(tmp_path, BoardSample()), [(0.0, 1.0)], tokens=5)
    assert found["valid"] is True and found["invalid_reasons"] == []
    names = ("watts", "joules_per_token", "temperature_c", "gpu_mhz", "emc_mhz", "peak_ram_bytes")
    assert all(found[name] is None for name in names)


def test_mode_asked_for_on_a_machine_that_is_no_board_is_said_to_be_unchecked(
    run: Any, shared_bundle: Path
) -> None:
    result = run("bench", shared_bundle, *FAST, "--power", "MAXN", "--json")
    assert {record["valid"] for record in lines(result)} == {None}
    assert "--power MAXN is not checked: this machine is no board" in result.stderr


def test_without_a_board_nothing_is_sampled() -> None:
    with watched(None, asked_mode="MAXN") as run:
        assert run is None
    assert set(board_readings(None, [(0.0, 1.0)], tokens=1).values()) == {None}
    assert roofline_share(None, 3.0) is None


def test_the_peak_is_that_of_the_modes_memory_clock(tmp_path: Path) -> None:
    assert roofline_share(board_run(tmp_path, mode="MAXN"), 102.368) == pytest.approx(0.5)
    slow = roofline_share(board_run(tmp_path, mode="MODE_15W"), 102.368)
    assert slow == pytest.approx(102.368 / (2133 * 64 / 1e3))


def test_warm_up_goes_on_for_the_seconds_asked_for(
    run: Any, shared_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from selfdraft.cli import measure

    rounds: list[bool] = []
    monkeypatch.setattr(measure, "_turn", _counting(measure._turn, rounds))
    clock = iter(float(i) for i in range(10_000))
    monkeypatch.setattr(measure.time, "monotonic", lambda: next(clock) / 100)
    options = ("--tokens", 4, "--repeats", 1, "--warmup", 1, "--drafts", 0, "--json")
    record = lines(run("bench", shared_bundle, *options, "--warmup-seconds", 0.05))[0]
    assert record["warmup_s"] == 0.05
    assert rounds.count(False) > 1 and rounds[-1] is True and rounds.count(True) == 1


def _counting(inner: Any, rounds: list[bool]) -> Any:
    def turn(*args: Any, counted: bool, **options: Any) -> None:
        rounds.append(counted)
        inner(*args, counted=counted, **options)

    return turn


def test_bytes_of_a_step_and_what_was_reached(run: Any, shared_bundle: Path) -> None:
    from support.reciting_bundle import HIDDEN, VOCAB

    plain, drafted = lines(run("bench", shared_bundle, "--drafts", "1", *FAST, "--json"))
    assert plain["bytes_per_step"] > VOCAB * HIDDEN * 4
    assert drafted["bytes_per_step"] > plain["bytes_per_step"]
    assert plain["gb_per_s"] == pytest.approx(
        plain["bytes_per_step"] / plain["engine_ms"]["median"] / 1e6
    )
    assert plain["ttft_ms"] > 0


@pytest.fixture
def two_files(tmp_path: Path) -> tuple[Path, Path]:
    before, after = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    before.write_text(as_lines(bench_line(0, 20.0), bench_line(1, 30.0, step_ms=spread(40, 5))))
    after.write_text(
        as_lines(
            bench_line(0, 25.0, backend="tensorrt"),
            bench_line(1, 31.0, step_ms=spread(38, 5)),
            bench_line(2, 35.0),
        )
    )
    return before, after


def test_compare_pairs_series_and_tells_noise_from_difference(run: Any, two_files: Any) -> None:
    result = run("bench", "compare", *two_files, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [(p["drafts"], p["verdict"]) for p in found["pairs"]] == [
        (0, "faster"),
        (1, "within the spread"),
    ]
    assert found["pairs"][0]["ratio"] == pytest.approx(1.25)
    assert found["differs"] == {"backend": ["ort", "tensorrt"]}


def test_compare_the_other_way_round_is_slower(run: Any, two_files: Any) -> None:
    result = run("bench", "compare", two_files[1], two_files[0])
    assert "slower" in result.stdout and "backend: tensorrt against ort" in result.stdout


def test_an_invalid_run_is_never_faster(run: Any, two_files: Any) -> None:
    line = bench_line(0, 99.0, valid=False, invalid_reasons=["the GPU clock fell"])
    two_files[1].write_text(as_lines(line))
    result = run("bench", "compare", *two_files)
    assert "invalid" in result.stdout and "faster" not in result.stdout
    assert "B is invalid: the GPU clock fell" in result.stderr


@pytest.mark.parametrize(
    "text, message",
    [
        (as_lines({**bench_line(), "schema": "selfdraft.bench/1"}), "schema 'selfdraft.bench/1'"),
        (as_lines({**bench_line(), "wats": 3}), "unknown key 'wats' (did you mean 'watts'?)"),
        (as_lines(bench_line(), {**bench_line(), "steps": "x"}), "line 2"),
        (as_lines(bench_line(5)), "no series in common"),
    ],
)
def test_files_that_cannot_be_compared(run: Any, two_files: Any, text: str, message: str) -> None:
    two_files[1].write_text(text)
    result = run("bench", "compare", *two_files)
    assert result.exit_code == 2 and message in result.stderr


@pytest.mark.parametrize("schema", [bench_serve_record.SCHEMA, bench_filled_record.SCHEMA])
@pytest.mark.parametrize("command", ["bench compare", "bench report", "advise"])
def test_lines_of_other_benchmarks_are_refused_by_their_name(
    run: Any, shared_bundle: Path, two_files: Any, schema: str, command: str
) -> None:
    two_files[0].write_text(as_lines({"schema": schema, "drafts": "0", "tok_per_s": 9.0}))
    advised = (shared_bundle, "--device", "agx-orin-64", "--measured", two_files[0])
    files = advised if command == "advise" else two_files
    result = run(*command.split(), *files)
    problem, hint = result.stderr.splitlines()
    assert result.exit_code == 2
    assert f"line 1 is a record of {schema.partition('/')[0]}, not of selfdraft.bench" in problem
    assert "selfdraft bench BUNDLE --json" in hint and "serve" in hint


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("compare",), "compare takes two files, 0 are given"),
        (("report",), "report needs a file"),
        (("BUNDLE", "more"), "more than the one bundle"),
    ],
)
def test_wrong_files(run: Any, shared_bundle: Path, arguments: Any, message: str) -> None:
    given = [shared_bundle if word == "BUNDLE" else word for word in arguments]
    result = run("bench", *given)
    assert result.exit_code == 2 and message in result.stderr


def test_report_is_a_markdown_table_with_plots(run: Any, two_files: Any, tmp_path: Path) -> None:
    result = run("bench", "report", two_files[1], "-o", tmp_path / "plots")
    assert result.exit_code == 0, result.stderr
    rows = [line for line in result.stdout.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + 3 and all(row.count("|") == rows[0].count("|") for row in rows)
    assert "80 %, 60 %" in rows[3] and "No board was watched" in result.stdout
    assert (tmp_path / "plots" / "speed.svg").read_text().count("<rect") == 1 + 3
    assert (tmp_path / "plots" / "acceptance.svg").read_text().count("<circle") == 2


def test_report_marks_forced_figures_and_invalid_runs(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    forced = bench_line(
        1, synthetic=True, forced_acceptance=[0.8], valid=False, invalid_reasons=["too hot"]
    )
    file.write_text(as_lines(forced))
    text = run("bench", "report", file).stdout
    assert "80 %*" in text and "synthetic figures" in text and "**Invalid run**: too hot." in text


def test_report_leaves_out_what_was_not_measured(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(as_lines(bench_line(0, gb_per_s=100.0, roofline_share=0.5, valid=True)))
    row = run("bench", "report", file).stdout.splitlines()[4]
    assert row.endswith("| – | – | 100.0 (50 %) | – |")
