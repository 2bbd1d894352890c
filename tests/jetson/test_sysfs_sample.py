"""Samples from an imitated sysfs."""

from __future__ import annotations

from pathlib import Path

from support.fake_boards import BOARDS
from support.fake_tree import write_tree

from selfdraft.jetson.sample import Load, RailPower, Temperature
from selfdraft.jetson.sysfs_sample import SysfsSource, parse_cpu_times

GPU_LOAD = "/sys/devices/platform/bus@0/17000000.gpu/load"


def test_sample_of_a_board(tmp_path: Path) -> None:
    system = BOARDS["agx-64-jetpack-6.2"](tmp_path)
    write_tree(tmp_path, {GPU_LOAD: "995", "/proc/stat": "cpu  1 1\ncpu0 10 0 0 90 0 0 0 0"})
    sample = SysfsSource(system).read()
    assert sample.ram is not None and sample.ram.total_bytes == 62_841 << 20
    assert sample.ram.used_bytes == (62_841 - 57_000) << 20
    assert sample.largest_free == (8000, 4 << 20)
    assert sample.gpu == Load(percent=99, mhz=(306,))
    assert sample.swap is not None and sample.swap.total_bytes == 31_420 << 20
    assert Temperature(name="tj", celsius=49.156) in sample.temperatures
    assert RailPower(name="VDD_GPU_SOC", now_mw=2391) in sample.rails
    assert sample.power_mw == 2391 + 797 + 4025


def test_cpu_shares_are_those_since_the_last_sample(tmp_path: Path) -> None:
    def stat(text: str) -> None:
        write_tree(tmp_path, {"/proc/stat": text})

    stat("cpu0 100 0 0 900 0 0 0 0\ncpu2 5 0 0 5 0 0 0 0")
    system = write_tree(
        tmp_path, {"/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "729600"}
    )
    source = SysfsSource(system)
    stat("cpu0 125 0 0 975 0 0 0 0\ncpu2 15 0 0 5 0 0 0 0")
    assert source.read().cpus == (Load(percent=25, mhz=(729,)), None, Load(percent=100))
    assert source.read().cpus[0] == Load(percent=0, mhz=(729,)), "no tick since"


def test_waiting_for_a_disk_is_not_busy_and_guests_count_once() -> None:
    assert parse_cpu_times("cpu3 1 2 3 40 50 6 7 8 9 10") == {3: (1 + 2 + 3 + 6 + 7 + 8, 117)}
    assert parse_cpu_times("cpu x\ncpux 1\nintr 5") == {}


def test_memory_clock_is_shown_where_it_can_be_read(tmp_path: Path) -> None:
    sample = SysfsSource(BOARDS["agx-64-jetpack-7.2"](tmp_path)).read()
    assert sample.emc == Load(percent=None, mhz=(3199,))


def test_workstation_has_memory_and_no_sensors(tmp_path: Path) -> None:
    sample = SysfsSource(BOARDS["plain-pc"](tmp_path)).read()
    assert sample.gpu is None and sample.emc is None and sample.power_mw is None
    assert sample.rails == () and sample.temperatures == () and sample.swap is None


def test_rail_that_gives_no_value_is_left_out(tmp_path: Path) -> None:
    system = BOARDS["nano-8"](tmp_path)
    source = SysfsSource(system)
    (tmp_path / "sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon3/curr1_input").unlink()
    assert [rail.name for rail in source.read().rails] == ["VDD_CPU_GPU_CV", "VDD_SOC"]
