"""Clocks from ``jetson_clocks --show`` and from sysfs."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_tree import write_tree

from selfdraft.jetson.clocks import SHOW, parse_jetson_clocks, read_clocks
from selfdraft.jetson.device import Clock, ConfiguredMode, PowerState

DATA = Path(__file__).parent / "data"
AGX = (DATA / "jetson_clocks_jp72_agx.txt").read_text()
NX = (DATA / "jetson_clocks_jp6_nx.txt").read_text()
NOBODY = PowerState(mode=None, mode_id=None, modes=(), default_id=None)
GPU = "/sys/class/devfreq/17000000.gpu"


def clock(low: float, high: float, now: float, governor: str | None = None) -> Clock:
    return Clock(min_mhz=low, max_mhz=high, now_mhz=now, governor=governor)


def test_report_of_jetpack_7() -> None:
    found = parse_jetson_clocks(AGX)
    assert (found.soc, found.mode, found.num_tpcs) == ("tegra234", "MAXN", 8)
    assert found.machine == "NVIDIA Jetson AGX Orin Developer Kit"
    assert len(found.cpus) == 12
    assert found.cpus[11] == (11, clock(2201.6, 2201.6, 2201.6, "schedutil"))
    assert found.gpu == clock(1300.5, 1300.5, 1300.5)
    assert found.emc == clock(3199.0, 3199.0, 3199.0)
    assert found.gpu is not None and found.gpu.locked is True


def test_report_of_jetpack_6() -> None:
    found = parse_jetson_clocks(NX)
    assert found.num_tpcs == 2 and found.mode is None
    assert found.gpu == clock(306.0, 624.75, 306.0)
    assert found.emc == clock(204.0, 2133.0, 2133.0)
    assert [number for number, _ in found.cpus] == [0, 1], "cpu4 is off"
    assert found.gpu is not None and found.gpu.locked is False


def test_refusal_without_root_is_kept() -> None:
    found = parse_jetson_clocks("Error: Run this script(/usr/bin/jetson_clocks) as a root user")
    assert found.error == "Run this script(/usr/bin/jetson_clocks) as a root user"
    assert found.gpu is None and found.cpus == ()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([AGX, NX]), st.integers(0, 900), st.text(max_size=20))
def test_damaged_reports_never_raise(report: str, place: int, text: str) -> None:
    parse_jetson_clocks(report[:place] + text + report[place + len(text) :])


def test_clocks_from_sysfs(tmp_path: Path) -> None:
    system = write_tree(
        tmp_path,
        {
            f"{GPU}/cur_freq": "306000000",
            f"{GPU}/min_freq": "306000000",
            f"{GPU}/max_freq": "612000000",
            f"{GPU}/governor": "nvhost_podgov",
            f"{GPU}/available_frequencies": "306000000 612000000 1300500000",
            "/sys/kernel/debug/bpmp/debug/clk/emc/rate": "2133000000",
            "/sys/devices/system/cpu/cpu0/cpufreq/scaling_min_freq": "729600",
            "/sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq": "1728000",
            "/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "729600",
            "/sys/devices/system/cpu/cpu10/online": "0",
            "/sys/devices/system/cpu/cpu2/online": "0",
            "/sys/devices/system/cpu/cpu2/cpufreq/scaling_max_freq": "1728000",
        },
    )
    found = read_clocks(system, NOBODY)
    assert found.gpu == clock(306.0, 612.0, 306.0, "nvhost_podgov")
    assert found.hardware_gpu_mhz == 1300.5
    assert found.emc is not None and found.emc.now_mhz == 2133.0
    assert found.cpus == (clock(729.6, 1728.0, 729.6), None, None)
    assert found.locked is False and found.num_tpcs is None


def test_older_name_of_the_gpu_is_found(tmp_path: Path) -> None:
    system = write_tree(tmp_path, {"/sys/class/devfreq/17000000.ga10b/max_freq": "918000000"})
    found = read_clocks(system, NOBODY)
    assert found.gpu is not None and found.gpu.max_mhz == 918.0


def test_root_sees_the_rest_through_the_tool(tmp_path: Path) -> None:
    found = read_clocks(write_tree(tmp_path, {}, outputs={SHOW: AGX}), NOBODY)
    assert found.num_tpcs == 8 and found.locked is True
    assert found.emc is not None and found.emc.max_mhz == 3199.0


def test_tpcs_come_from_the_mode_where_the_tool_says_nothing(tmp_path: Path) -> None:
    mode = ConfiguredMode(
        id=2, name="MODE_30W", num_cpus=8, gpu_mhz=612.0, num_tpcs=4, emc_mhz=None
    )
    power = PowerState(mode="MODE_30W", mode_id=2, modes=(mode,), default_id=2)
    assert read_clocks(write_tree(tmp_path, {}), power).num_tpcs == 4
