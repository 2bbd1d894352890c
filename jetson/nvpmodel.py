"""Power modes: nvpmodel's configuration, its state file, and what ``nvpmodel -q`` says."""

from __future__ import annotations

import re
from dataclasses import dataclass

from selfdraft.jetson.device import ConfiguredMode, PowerState
from selfdraft.jetson.system import System

CONFIG_PATH = "/etc/nvpmodel.conf"
STATUS_PATH = "/var/lib/nvpmodel/status"
QUERY = ("nvpmodel", "-q")
_TPCS_OF_THE_SOC = 8

_MODE = re.compile(r"^NV Power Mode:\s*(\S+)", re.MULTILINE)
_FAN = re.compile(r"^NV Fan Mode:\s*(\S+)", re.MULTILINE)
_ID = re.compile(r"^(\d{1,4})\s*$", re.MULTILINE | re.ASCII)
_ERROR = re.compile(r"^NVPM ERROR:\s*(.+)$", re.MULTILINE)
_STATUS = re.compile(r"\bpmode:(\d{1,6})", re.ASCII)
_SECTION = re.compile(r"^<\s*(\w+)((?:\s+\w+=\S+)*)\s*>", re.ASCII)
_ATTRIBUTE = re.compile(r"(\w+)=(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Answer of ``nvpmodel -q``; ``error`` is what it complained about."""

    mode: str | None
    mode_id: int | None
    fan: str | None
    error: str | None


def parse_query(text: str) -> Query:
    """``NV Power Mode: MODE_30W`` and the id on a line of its own."""
    mode, fan, error = (found.search(text) for found in (_MODE, _FAN, _ERROR))
    mode_id = _ID.search(text)
    return Query(
        mode=mode.group(1) if mode else None,
        mode_id=int(mode_id.group(1)) if mode and mode_id else None,
        fan=fan.group(1) if fan else None,
        error=error.group(1).strip() if error else None,
    )


def parse_status(text: str) -> int | None:
    """The mode's id in ``pmode:0002 fmode:quiet``."""
    found = _STATUS.search(text)
    return int(found.group(1)) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The modes of ``nvpmodel.conf`` and the default's id."""

    modes: tuple[ConfiguredMode, ...]
    default_id: int | None


def parse_configuration(text: str) -> Configuration:
    """Modes with their caps. A cap of 0 or -1 means none; lines that are not understood are
    left out, as the format has grown with every release."""
    modes: list[ConfiguredMode] = []
    default_id: int | None = None
    head: dict[str, str] | None = None
    settings: list[tuple[str, ...]] = []
    for line in [*text.splitlines(), "< END >"]:
        section = _SECTION.match(line.strip())
        if section is None:
            settings.append(tuple(line.split()))
            continue
        if head is not None and _is_number(head.get("ID")) and "NAME" in head:
            modes.append(_mode(head, settings))
        attributes = dict(_ATTRIBUTE.findall(section.group(2)))
        head = attributes if section.group(1) == "POWER_MODEL" else None
        settings = []
        if section.group(1) == "PM_CONFIG" and _is_number(attributes.get("DEFAULT")):
            default_id = int(attributes["DEFAULT"])
    return Configuration(modes=tuple(modes), default_id=default_id)


def _mode(head: dict[str, str], settings: list[tuple[str, ...]]) -> ConfiguredMode:
    caps = {
        (line[0], line[1]): int(line[2])
        for line in settings
        if len(line) == 3 and _is_number(line[2])
    }
    cpus = [value for (name, _), value in caps.items() if name == "CPU_ONLINE"]
    mask = next((value for (_, key), value in caps.items() if key == "TPC_PG_MASK"), None)
    return ConfiguredMode(
        id=int(head["ID"]),
        name=head["NAME"],
        num_cpus=sum(cpus) if cpus else None,
        gpu_mhz=_cap_mhz(caps.get(("GPU", "MAX_FREQ"))),
        num_tpcs=None if mask is None else _TPCS_OF_THE_SOC - (mask & 0xFF).bit_count(),
        emc_mhz=_cap_mhz(caps.get(("EMC", "MAX_FREQ"))),
    )


def _is_number(text: str | None) -> bool:
    return text is not None and re.fullmatch(r"-?\d{1,12}", text, re.ASCII) is not None


def _cap_mhz(hertz: int | None) -> float | None:
    return hertz / 1e6 if hertz is not None and hertz > 0 else None


def read_power(system: System) -> PowerState:
    """The mode in force: id from the state file, name from this device's configuration. Where
    either is missing the tool is asked; an id is never taken for another module's mode."""
    config = parse_configuration(system.text(CONFIG_PATH) or "")
    mode_id = parse_status(system.text(STATUS_PATH) or "")
    names = {mode.id: mode.name for mode in config.modes}
    name = names.get(mode_id) if mode_id is not None else None
    if name is None:
        query = parse_query(system.output(*QUERY) or "")
        name = query.mode
        mode_id = query.mode_id if name else mode_id
    return PowerState(mode=name, mode_id=mode_id, modes=config.modes, default_id=config.default_id)
