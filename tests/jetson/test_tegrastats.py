"""tegrastats' lines: every generation's sample to its typed values, back to lines, and no crash."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfdraft.jetson.sample import BoardSample, Engine, Load, RailPower, Temperature, Usage
from selfdraft.jetson.tegrastats import parse_log, parse_tegrastats, render_tegrastats

MIB = 1 << 20
LINES = dict(
    line.split(" ", 1)
    for line in (Path(__file__).parent / "data" / "tegrastats.txt").read_text().splitlines()
)


def sample(key: str) -> BoardSample:
    found = parse_tegrastats(LINES[key])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("key", "time", "ram", "largest"),
    [
        ("A", datetime(2023, 4, 24, 0, 1, 24), (1282, 62795), (15152, 4)),
        ("B", datetime(2025, 4, 11, 10, 36, 27), (4321, 62801), (1759, 4)),
        ("C", datetime(2026, 10, 5, 21, 3, 35), (5137, 62841), (2, 4)),
        ("D", datetime(2026, 5, 9, 18, 42, 6), (18207, 62841), (466, 4)),
        ("E", datetime(2026, 4, 27, 14, 59, 41), (775, 7620), (3, 4)),
        ("F", datetime(2026, 10, 8, 4, 35, 2), (6712, 7620), (12, 4)),
        ("G", datetime(2026, 7, 25, 9, 8, 28), (20642, 62817), (1, 2)),
        ("H", datetime(2026, 9, 19, 13, 33, 3), (2845, 7486), (33, 4)),
    ],
)
def test_time_memory_and_largest_free_block_of_every_generation(
    key: str, time: datetime, ram: tuple[int, int], largest: tuple[int, int]
) -> None:
    found = sample(key)
    assert found.time == time
    assert found.ram == Usage(used_bytes=ram[0] * MIB, total_bytes=ram[1] * MIB)
    assert found.largest_free == (largest[0], largest[1] * MIB)


@pytest.mark.parametrize(
    ("key", "swap"),
    [
        ("A", (0, 31398, 0)),
        ("B", (19, 31400, 0)),
        ("D", (86, 31420, 0)),
        ("F", (369, 3810, 8)),
        ("G", None),
        ("H", None),
    ],
)
def test_swap_is_optional(key: str, swap: tuple[int, int, int] | None) -> None:
    expected = None
    if swap is not None:
        used, total, cached = (value * MIB for value in swap)
        expected = Usage(used_bytes=used, total_bytes=total, cached_bytes=cached)
    assert sample(key).swap == expected


@pytest.mark.parametrize(
    ("key", "gpu", "emc"),
    [
        ("A", Load(percent=0, mhz=(0,)), Load(percent=0, mhz=(2133,))),
        ("B", Load(percent=0, mhz=(0, 0)), Load(percent=0, mhz=(2133,))),
        ("C", Load(percent=0), None),
        ("D", Load(percent=0, mhz=(0, 0)), Load(percent=3, mhz=(2133,))),
        ("E", Load(percent=0), None),
        ("F", Load(percent=99, mhz=(612,)), Load(percent=61, mhz=(2133,))),
        ("G", Load(percent=12, mhz=(1300, 1300)), Load(percent=3, mhz=(3199,))),
        ("H", Load(percent=0, mhz=(305,)), Load(percent=3, mhz=(665,))),
    ],
)
def test_gpu_and_memory_clock_in_every_form(key: str, gpu: Load, emc: Load | None) -> None:
    assert sample(key).gpu == gpu
    assert sample(key).emc == emc


def test_second_gpu_stands_on_early_jetpack_5_only() -> None:
    assert sample("A").second_gpu == Load(percent=0, mhz=(0,))
    assert sample("B").second_gpu is None


def test_thor_shows_clocks_without_a_share() -> None:
    found = parse_tegrastats("GR3D_FREQ @[1000,1000,1000]")
    assert found == BoardSample(gpu=Load(percent=None, mhz=(1000, 1000, 1000)))


def test_cpus_with_share_and_clock_and_those_that_are_off() -> None:
    assert sample("D").cpus[:2] == (Load(percent=14, mhz=(2188,)), Load(percent=5, mhz=(2112,)))
    assert [len(sample(key).cpus) for key in "ADEFGH"] == [12, 12, 6, 6, 12, 6]
    found = parse_tegrastats("CPU [5%@729,off,off]")
    assert found is not None
    assert found.cpus == (Load(percent=5, mhz=(729,)), None, None)


def test_engines_busy_off_and_with_a_clock_alone() -> None:
    assert Engine(name="NVENC", percent=79, mhz=166) in sample("D").engines
    assert Engine(name="VIC", percent=36, mhz=115) in sample("D").engines
    assert Engine(name="NVDLA0") in sample("G").engines
    assert Engine(name="APE", mhz=174) in sample("A").engines
    assert len(sample("D").engines) == len(sample("G").engines) == 10


@pytest.mark.parametrize(
    ("key", "zone"),
    [
        ("A", Temperature(name="CPU", celsius=42.593)),
        ("A", Temperature(name="GPU", celsius=None)),
        ("A", Temperature(name="Tboard", celsius=32.0)),
        ("C", Temperature(name="tj", celsius=52.875)),
        ("G", Temperature(name="gpu", celsius=47.625, highest_c=47.625)),
        ("H", Temperature(name="cpu", celsius=45.375, highest_c=45.812)),
    ],
)
def test_temperatures_with_and_without_a_highest_one(key: str, zone: Temperature) -> None:
    assert zone in sample(key).temperatures


def test_hottest_zone_leaves_out_absent_sensors() -> None:
    hottest = sample("A").hottest
    assert hottest is not None and hottest.name == "CPU"
    assert BoardSample(temperatures=(Temperature(name="x", celsius=None),)).hottest is None


@pytest.mark.parametrize(
    ("key", "rail"),
    [
        ("A", RailPower(name="VDD_GPU_SOC", now_mw=2399, average_mw=2399)),
        ("F", RailPower(name="VDD_IN", now_mw=16321, average_mw=11204)),
        ("H", RailPower(name="VDD_IN", now_mw=3462, average_mw=3522, highest_mw=3582)),
    ],
)
def test_rails_with_two_or_three_values(key: str, rail: RailPower) -> None:
    assert rail in sample(key).rails


def test_unconnected_rails_are_left_out() -> None:
    assert [rail.name for rail in sample("A").rails] == [
        "VDD_GPU_SOC",
        "VDD_CPU_CV",
        "VIN_SYS_5V0",
        "VDDQ_VDD2_1V8AO",
    ]


@pytest.mark.parametrize(
    ("key", "milliwatt"), [("A", 6831), ("C", 8515), ("E", 4761), ("F", 16321), ("G", 13907)]
)
def test_board_power_adds_the_rails_that_do_not_contain_each_other(
    key: str, milliwatt: int
) -> None:
    assert sample(key).power_mw == milliwatt


def test_board_power_is_unknown_without_its_rails() -> None:
    assert BoardSample(rails=(RailPower(name="VDD_GPU_SOC", now_mw=5),)).power_mw is None


@pytest.mark.parametrize("key", sorted(LINES))
def test_rendered_line_reads_back_as_the_same_sample(key: str) -> None:
    assert parse_tegrastats(render_tegrastats(sample(key))) == sample(key)


@pytest.mark.parametrize("line", ["", "hello world", "09-19-2026 13:33:03", "13-99-2026 99:99:99"])
def test_line_without_content_is_no_sample(line: str) -> None:
    assert parse_tegrastats(line) is None


def test_log_skips_what_is_no_sample() -> None:
    assert list(parse_log(iter(["noise", LINES["E"], "\n"]))) == [sample("E")]


SIZES = st.integers(0, 10**6).map(lambda mib: mib * MIB)
PERCENT = st.integers(0, 100)
MHZ = st.integers(0, 99_999)
CELSIUS = st.none() | st.integers(-200_000, 200_000).map(lambda n: n / 1000)
LOADS = st.builds(Load, percent=PERCENT, mhz=st.lists(MHZ, max_size=3).map(tuple))
ENGINES = st.builds(
    Engine, name=st.sampled_from(["NVENC", "VIC", "APE"]), percent=st.none() | PERCENT, mhz=MHZ
) | st.builds(Engine, name=st.sampled_from(["OFA", "NVDLA0"]))
ZONES = st.builds(
    Temperature, name=st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,8}", fullmatch=True), celsius=CELSIUS
)
RAILS = st.builds(
    RailPower,
    name=st.from_regex(r"V[A-Z0-9_]{1,10}", fullmatch=True),
    now_mw=st.integers(0, 10**6),
    average_mw=st.none() | st.integers(0, 10**6),
)
SAMPLES = st.builds(
    BoardSample,
    time=st.none()
    | st.datetimes(datetime(2000, 1, 1), datetime(2099, 1, 1)).map(
        lambda t: t.replace(microsecond=0)
    ),
    ram=st.builds(Usage, used_bytes=SIZES, total_bytes=SIZES),
    largest_free=st.tuples(st.integers(0, 10**6), st.sampled_from([512 << 10, 2 * MIB, 4 * MIB])),
    swap=st.none() | st.builds(Usage, used_bytes=SIZES, total_bytes=SIZES, cached_bytes=SIZES),
    cpus=st.lists(
        st.none() | st.builds(Load, percent=PERCENT, mhz=st.tuples(MHZ)), max_size=12
    ).map(tuple),
    emc=st.none() | LOADS,
    gpu=st.none() | LOADS,
    engines=st.lists(ENGINES, max_size=4).map(tuple),
    temperatures=st.lists(ZONES, max_size=4).map(tuple),
    rails=st.lists(RAILS, max_size=4).map(tuple),
)


@settings(max_examples=60, deadline=None)
@given(SAMPLES)
def test_any_sample_reads_back_from_its_line(original: BoardSample) -> None:
    assert parse_tegrastats(render_tegrastats(original)) == original


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(LINES)),
    st.lists(st.tuples(st.integers(0, 900), st.text(max_size=6)), max_size=6),
)
def test_damaged_lines_never_raise(key: str, damage: list[tuple[int, str]]) -> None:
    line = LINES[key]
    for place, text in damage:
        line = line[:place] + text + line[place + len(text) :]
    parse_tegrastats(line)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="RAMSWP CPU[]()0123456789%@/,xMBlfb_GEDWF-C.mNo\u0663\u00b2", max_size=200))
def test_random_lines_never_raise(line: str) -> None:
    parse_tegrastats(line)


def test_numbers_of_any_length_never_raise() -> None:
    parse_tegrastats(f"RAM {'9' * 5000}/1MB GR3D_FREQ {'9' * 5000}% VDD_IN {'9' * 5000}mW")
