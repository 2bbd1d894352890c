"""Samples of a running board from sysfs and procfs: no root, no daemon, no other process."""

from __future__ import annotations

from datetime import datetime

from selfdraft.jetson.clocks import CPU_FOLDER, EMC_RATE, GPU_FOLDERS
from selfdraft.jetson.memory import read_memory
from selfdraft.jetson.numbers import count_from_text
from selfdraft.jetson.sample import BoardSample, Load, RailPower, Temperature, Usage
from selfdraft.jetson.sensors import ZONE_FOLDERS, rail_channels
from selfdraft.jetson.system import System

_GPU_LOADS = tuple(
    f"/sys/devices/platform/{folder}{unit}/load"
    for folder in ("", "bus@0/")
    for unit in ("17000000.gpu", "17000000.ga10b", "gpu.0")
)
_PER_CENT_OF_LOAD = 10
"""The driver gives tenths of a percent."""

_Times = dict[int, tuple[int, int]]
"""CPU number → (busy, all) ticks since boot."""


class SysfsSource:
    """Reads samples; what to read is looked up once. CPU shares are those since the last sample."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._rails = [
            (name, f"{folder}/in{channel}_input", f"{folder}/curr{channel}_input")
            for name, folder, channel in rail_channels(system)
        ]
        self._zones = [
            ((system.text(f"{folder}/type") or folder).removesuffix("-thermal"), f"{folder}/temp")
            for folder in system.glob(ZONE_FOLDERS)
        ]
        self._gpu_load = system.first(*_GPU_LOADS)
        self._gpu_clock = system.first(*GPU_FOLDERS)
        self._times = parse_cpu_times(system.text("/proc/stat") or "")

    def read(self) -> BoardSample:
        """The board now."""
        memory = read_memory(self._system)
        swap_total = sum(area.total_bytes for area in memory.swaps)
        return BoardSample(
            time=datetime.now(),
            ram=Usage(
                used_bytes=memory.total_bytes - memory.available_bytes,
                total_bytes=memory.total_bytes,
            ),
            largest_free=memory.largest_free,
            swap=Usage(
                used_bytes=sum(area.used_bytes for area in memory.swaps), total_bytes=swap_total
            )
            if swap_total
            else None,
            cpus=self._cpus(),
            emc=self._emc(),
            gpu=self._gpu(),
            temperatures=tuple(self._temperature(*zone) for zone in self._zones),
            rails=tuple(rail for row in self._rails if (rail := self._rail(*row)) is not None),
        )

    def _cpus(self) -> tuple[Load | None, ...]:
        before, self._times = self._times, parse_cpu_times(self._system.text("/proc/stat") or "")
        count = max(self._times, default=-1) + 1
        return tuple(self._cpu(number, before) for number in range(count))

    def _cpu(self, number: int, before: _Times) -> Load | None:
        now = self._times.get(number)
        if now is None:
            return None
        busy, total = (b - a for a, b in zip(before.get(number, (0, 0)), now, strict=True))
        clock = self._mhz(f"{CPU_FOLDER}/cpu{number}/cpufreq/scaling_cur_freq", 1_000)
        return Load(percent=round(100 * busy / total) if total > 0 else 0, mhz=clock)

    def _gpu(self) -> Load | None:
        if self._gpu_load is None and self._gpu_clock is None:
            return None
        load = self._system.number(self._gpu_load) if self._gpu_load else None
        clock = self._mhz(f"{self._gpu_clock}/cur_freq", 1_000_000) if self._gpu_clock else ()
        return Load(percent=None if load is None else load // _PER_CENT_OF_LOAD, mhz=clock)

    def _emc(self) -> Load | None:
        clock = self._mhz(f"{EMC_RATE}/rate", 1_000_000)
        return Load(percent=None, mhz=clock) if clock else None

    def _mhz(self, path: str, per_mhz: int) -> tuple[int, ...]:
        value = self._system.number(path)
        return () if value is None else (value // per_mhz,)

    def _temperature(self, name: str, path: str) -> Temperature:
        value = self._system.number(path)
        return Temperature(name=name, celsius=None if value is None else value / 1e3)

    def _rail(self, name: str, volt_path: str, ampere_path: str) -> RailPower | None:
        millivolt = self._system.number(volt_path)
        milliampere = self._system.number(ampere_path)
        if millivolt is None or milliampere is None:
            return None
        return RailPower(name=name, now_mw=round(millivolt * milliampere / 1e3))


def parse_cpu_times(text: str) -> _Times:
    """``/proc/stat``'s lines ``cpuN``: ticks not idle (columns 4 and 5 are idle and waiting), and
    all ticks. Guest time is part of user time already."""
    times: _Times = {}
    for line in text.splitlines():
        name, *ticks = line.split() or [""]
        number = count_from_text(name[3:]) if name.startswith("cpu") else None
        counts = [count for tick in ticks[:8] if (count := count_from_text(tick)) is not None]
        if number is not None and len(counts) == len(ticks[:8]):
            times[number] = (sum(counts) - sum(counts[3:5]), sum(counts))
    return times
