"""Clocks: from sysfs, and, for what only root sees there, from ``jetson_clocks --show``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from selfdraft.jetson.device import Clock, Clocks, PowerState
from selfdraft.jetson.numbers import count_from_text
from selfdraft.jetson.system import System

SHOW = ("jetson_clocks", "--show")
GPU_FOLDERS = ("/sys/class/devfreq/17000000.gpu", "/sys/class/devfreq/17000000.ga10b")
EMC_RATE = "/sys/kernel/debug/bpmp/debug/clk/emc"
CPU_FOLDER = "/sys/devices/system/cpu"

_FREQUENCY = re.compile(r"\b(Min|Max|Current)Freq=(\d{1,12})\b", re.ASCII)
_CPU = re.compile(r"^cpu(\d{1,3}):(.*)$", re.MULTILINE | re.ASCII)
_LINE = re.compile(r"^(GPU|EMC) (MinFreq=.*)$", re.MULTILINE)
_WORD = re.compile(r"\b(Governor|Online)=(\S+)")
_ONE = {
    "soc": re.compile(r"^SOC family:(\S+)", re.MULTILINE),
    "machine": re.compile(r"Machine:(.+?)\s*$", re.MULTILINE),
    "tpcs": re.compile(r"^Active GPU TPCs: (\d{1,3})\b", re.MULTILINE | re.ASCII),
    "mode": re.compile(r"^NV Power Mode: (\S+)", re.MULTILINE),
    "error": re.compile(r"^Error: (.+?)\s*$", re.MULTILINE),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClocksReport:
    """Answer of ``jetson_clocks --show``: clocks in MHz, ``cpus`` by their number."""

    soc: str | None
    machine: str | None
    cpus: tuple[tuple[int, Clock], ...]
    gpu: Clock | None
    emc: Clock | None
    num_tpcs: int | None
    mode: str | None
    error: str | None


def parse_jetson_clocks(text: str) -> ClocksReport:
    """The report of any release since JetPack 6; CPU clocks come in kHz, the others in Hz."""
    found = {name: pattern.search(text) for name, pattern in _ONE.items()}
    one = {name: match.group(1) if match else None for name, match in found.items()}
    lines = dict(_LINE.findall(text))
    cpus = [
        (int(number), clock)
        for number, rest in _CPU.findall(text)
        if (clock := _clock(rest, per_mhz=1e3)) is not None
    ]
    return ClocksReport(
        soc=one["soc"],
        machine=one["machine"],
        cpus=tuple(cpus),
        gpu=_clock(lines.get("GPU", ""), per_mhz=1e6),
        emc=_clock(lines.get("EMC", ""), per_mhz=1e6),
        num_tpcs=int(one["tpcs"]) if one["tpcs"] else None,
        mode=one["mode"],
        error=one["error"],
    )


def _clock(line: str, *, per_mhz: float) -> Clock | None:
    values = {name: int(value) / per_mhz for name, value in _FREQUENCY.findall(line)}
    words = dict(_WORD.findall(line))
    if not values or words.get("Online") == "0":
        return None
    return Clock(
        min_mhz=values.get("Min"),
        max_mhz=values.get("Max"),
        now_mhz=values.get("Current"),
        governor=words.get("Governor"),
    )


def read_clocks(system: System, power: PowerState) -> Clocks:
    """Clocks now. The memory clock needs root; TPCs come from ``jetson_clocks``, else from the
    mode in force."""
    report = parse_jetson_clocks(system.output(*SHOW) or "")
    mode = next((m for m in power.modes if m.id == power.mode_id and m.name == power.mode), None)
    gpu_folder = system.first(*GPU_FOLDERS)
    steps = (system.text(f"{gpu_folder}/available_frequencies") or "").split()
    return Clocks(
        gpu=_devfreq(system, gpu_folder) or report.gpu,
        hardware_gpu_mhz=max((count_from_text(s) or 0 for s in steps), default=0) / 1e6 or None,
        emc=_emc(system) or report.emc,
        cpus=_cpus(system) or tuple(clock for _, clock in report.cpus),
        num_tpcs=report.num_tpcs or (mode.num_tpcs if mode else None),
    )


def _devfreq(system: System, folder: str | None) -> Clock | None:
    if folder is None:
        return None
    return Clock(
        min_mhz=_mhz(system, f"{folder}/min_freq", 1e6),
        max_mhz=_mhz(system, f"{folder}/max_freq", 1e6),
        now_mhz=_mhz(system, f"{folder}/cur_freq", 1e6),
        governor=system.text(f"{folder}/governor"),
    )


def _emc(system: System) -> Clock | None:
    now = _mhz(system, f"{EMC_RATE}/rate", 1e6)
    if now is None:
        return None
    return Clock(
        min_mhz=_mhz(system, f"{EMC_RATE}/min_rate", 1e6),
        max_mhz=_mhz(system, f"{EMC_RATE}/max_rate", 1e6),
        now_mhz=now,
    )


def _cpus(system: System) -> tuple[Clock | None, ...]:
    """A clock for each CPU in order of its number; ``None`` where it is off or has no clock."""
    folders = system.glob(f"{CPU_FOLDER}/cpu[0-9]*")
    folders = tuple(sorted(folders, key=lambda f: int("0" + re.sub(r"\D", "", f[-4:]))))
    found: list[Clock | None] = []
    for folder in folders:
        clock = Clock(
            min_mhz=_mhz(system, f"{folder}/cpufreq/scaling_min_freq", 1e3),
            max_mhz=_mhz(system, f"{folder}/cpufreq/scaling_max_freq", 1e3),
            now_mhz=_mhz(system, f"{folder}/cpufreq/scaling_cur_freq", 1e3),
            governor=system.text(f"{folder}/cpufreq/scaling_governor"),
        )
        off = system.number(f"{folder}/online") == 0
        found.append(None if off or clock.max_mhz is None else clock)
    return tuple(found) if any(found) else ()


def _mhz(system: System, path: str, per_mhz: float) -> float | None:
    value = system.number(path)
    return None if value is None else value / per_mhz
