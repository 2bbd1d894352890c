"""tegrastats' lines, of every release from JetPack 5 on, as samples; and samples as lines.

Forms differ by release and by user (root sees more); what a line lacks is absent in the sample, and
what is not understood is left out, so that no line can fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise

from selfdraft.jetson.sample import BoardSample, Engine, Load, RailPower, Temperature, Usage

_MIB = 1 << 20
_UNITS = {"kB": 1 << 10, "MB": _MIB}
_NO_SENSOR_C = -256.0
_NOT_CONNECTED = "NC"

_TIME = re.compile(r"^\s*(\d\d)-(\d\d)-(\d{4}) (\d\d):(\d\d):(\d\d)\b", re.ASCII)
_RAM = re.compile(r"\bRAM (\d{1,9})/(\d{1,9})MB(?: \(lfb (\d{1,9})x(\d{1,6})(kB|MB)\))?", re.ASCII)
_SWAP = re.compile(r"\bSWAP (\d{1,9})/(\d{1,9})MB(?: \(cached (\d{1,9})MB\))?", re.ASCII)
_CPU = re.compile(r"\bCPU \[([^\]]*)\]")
_CPU_LOAD = re.compile(r"(\d{1,3})%@(\d{1,5})", re.ASCII)
_LOAD = re.compile(r"(?:(\d{1,3})%)?(?:@(\d{1,5})|@\[((?:\d{1,5},)*\d{1,5})\])?", re.ASCII)
_ENGINE_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,31}", re.ASCII)
_ENGINE_LOAD = re.compile(r"(\d{1,3})%(?:@(\d{1,5}))?|(\d{1,5})", re.ASCII)
_NUMBER = r"-?\d{1,5}(?:\.\d{1,6})?"
_TEMPERATURE = re.compile(rf"([\w.-]{{1,32}})@({_NUMBER})C(?:/({_NUMBER})C)?", re.ASCII)
_POWER = re.compile(r"(\d{1,9})mW(?:/(\d{1,9})mW)?(?:/(\d{1,9})mW)?", re.ASCII)


def parse_tegrastats(line: str) -> BoardSample | None:
    """The line as a sample; ``None`` for a line with nothing of tegrastats in it."""
    found: dict[str, object] = {"time": _time(line)}
    rest = line
    if (ram := _RAM.search(line)) is not None:
        found["ram"] = _usage(ram.group(1), ram.group(2))
        if ram.group(3):
            found["largest_free"] = (int(ram.group(3)), int(ram.group(4)) * _UNITS[ram.group(5)])
    if (swap := _SWAP.search(line)) is not None:
        found["swap"] = _usage(swap.group(1), swap.group(2), cached=swap.group(3))
    if (cpus := _CPU.search(line)) is not None:
        found["cpus"] = tuple(_cpu(entry) for entry in cpus.group(1).split(","))
        rest = line[: cpus.start()] + line[cpus.end() :]
    found.update(_units(rest.split()))
    sample = BoardSample(**found)  # type: ignore[arg-type]
    return None if sample == BoardSample(time=sample.time) else sample


def parse_log(lines: Iterator[str]) -> Iterator[BoardSample]:
    """The samples of a log, without the lines that are none."""
    for line in lines:
        sample = parse_tegrastats(line)
        if sample is not None:
            yield sample


def _time(line: str) -> datetime | None:
    found = _TIME.match(line)
    if found is None:
        return None
    month, day, year, hour, minute, second = (int(part) for part in found.groups())
    try:
        return datetime(year, month, day, hour, minute, second)
    except ValueError:
        return None


def _usage(used: str, total: str, *, cached: str | None = None) -> Usage:
    return Usage(
        used_bytes=int(used) * _MIB,
        total_bytes=int(total) * _MIB,
        cached_bytes=int(cached) * _MIB if cached else None,
    )


def _cpu(entry: str) -> Load | None:
    found = _CPU_LOAD.fullmatch(entry.strip())
    return Load(percent=int(found.group(1)), mhz=(int(found.group(2)),)) if found else None


def _units(words: list[str]) -> dict[str, object]:
    """Everything but memory and CPUs: ``NAME value`` pairs and ``zone@value``."""
    units: dict[str, object] = {}
    engines: list[Engine] = []
    zones: list[Temperature] = []
    rails: list[RailPower] = []
    loads = {"GR3D_FREQ": "gpu", "GR3D2_FREQ": "second_gpu", "EMC_FREQ": "emc"}
    for word, value in pairwise([*words, ""]):
        if (zone := _TEMPERATURE.fullmatch(word)) is not None:
            zones.append(_temperature(zone))
        elif word in loads:
            if (load := _load(value)) is not None:
                units[loads[word]] = load
        elif (power := _POWER.fullmatch(value)) is not None:
            if word != _NOT_CONNECTED:
                rails.append(_rail(word, power))
        elif _ENGINE_NAME.fullmatch(word) and (engine := _engine(word, value)) is not None:
            engines.append(engine)
    return units | {"engines": tuple(engines), "temperatures": tuple(zones), "rails": tuple(rails)}


def _load(text: str) -> Load | None:
    found = _LOAD.fullmatch(text)
    if found is None or not text:
        return None
    percent, one, several = found.groups()
    clocks = (one or several or "").split(",") if one or several else []
    return Load(percent=int(percent) if percent else None, mhz=tuple(int(c) for c in clocks))


def _engine(name: str, value: str) -> Engine | None:
    if value == "off":
        return Engine(name=name)
    found = _ENGINE_LOAD.fullmatch(value)
    if found is None:
        return None
    percent, clock, alone = found.groups()
    mhz = clock or alone
    return Engine(
        name=name, percent=int(percent) if percent else None, mhz=int(mhz) if mhz else None
    )


def _temperature(found: re.Match[str]) -> Temperature:
    values = [None if text is None else float(text) for text in found.groups()[1:]]
    now, highest = (None if value == _NO_SENSOR_C else value for value in values)
    return Temperature(name=found.group(1), celsius=now, highest_c=highest)


def _rail(name: str, found: re.Match[str]) -> RailPower:
    now, average, highest = (None if text is None else int(text) for text in found.groups())
    return RailPower(name=name, now_mw=now or 0, average_mw=average, highest_mw=highest)


def render_tegrastats(sample: BoardSample) -> str:
    """The sample as a line that ``parse_tegrastats`` reads back; sizes in whole MiB."""
    parts: list[str] = []
    if sample.time is not None:
        parts.append(f"{sample.time:%m-%d-%Y %H:%M:%S}")
    if sample.ram is not None:
        parts.append(f"RAM {_mib(sample.ram.used_bytes)}/{_mib(sample.ram.total_bytes)}MB")
        if sample.largest_free is not None:
            blocks, size = sample.largest_free
            shown = f"{_mib(size)}MB" if size % _MIB == 0 else f"{size >> 10}kB"
            parts.append(f"(lfb {blocks}x{shown})")
    if sample.swap is not None:
        parts.append(f"SWAP {_mib(sample.swap.used_bytes)}/{_mib(sample.swap.total_bytes)}MB")
        if sample.swap.cached_bytes is not None:
            parts.append(f"(cached {_mib(sample.swap.cached_bytes)}MB)")
    if sample.cpus:
        loads = ("off" if cpu is None else f"{cpu.percent}%@{cpu.mhz[0]}" for cpu in sample.cpus)
        parts.append(f"CPU [{','.join(loads)}]")
    named = (
        ("EMC_FREQ", sample.emc),
        ("GR3D_FREQ", sample.gpu),
        ("GR3D2_FREQ", sample.second_gpu),
    )
    parts += [f"{name} {_load_text(load)}" for name, load in named if load is not None]
    parts += [_engine_text(engine) for engine in sample.engines]
    parts += [_temperature_text(zone) for zone in sample.temperatures]
    parts += [_rail_text(rail) for rail in sample.rails]
    return " ".join(parts)


def _mib(size: int) -> int:
    return size // _MIB


def _load_text(load: Load) -> str:
    share = "" if load.percent is None else f"{load.percent}%"
    return share + (f"@[{','.join(map(str, load.mhz))}]" if load.mhz else "")


def _engine_text(engine: Engine) -> str:
    if engine.percent is None:
        return f"{engine.name} {'off' if engine.mhz is None else engine.mhz}"
    clock = "" if engine.mhz is None else f"@{engine.mhz}"
    return f"{engine.name} {engine.percent}%{clock}"


def _temperature_text(zone: Temperature) -> str:
    highest = "" if zone.highest_c is None else f"/{_celsius(zone.highest_c)}"
    return f"{zone.name}@{_celsius(zone.celsius)}{highest}"


def _celsius(value: float | None) -> str:
    return f"{_NO_SENSOR_C if value is None else value:.10g}C"


def _rail_text(rail: RailPower) -> str:
    values = (rail.now_mw, rail.average_mw, rail.highest_mw)
    return f"{rail.name} " + "/".join(f"{value}mW" for value in values if value is not None)
