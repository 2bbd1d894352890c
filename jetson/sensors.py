"""Sensors by sysfs, without root and without a daemon: power rails, temperatures, throttling."""

from __future__ import annotations

import re

from selfdraft.jetson.device import Rail, Throttling, Zone
from selfdraft.jetson.system import System

RAIL_FOLDERS = "/sys/bus/i2c/drivers/ina3221/*/hwmon/hwmon*"
ZONE_FOLDERS = "/sys/class/thermal/thermal_zone*"
OVER_CURRENT_COUNTS = "/sys/class/hwmon/hwmon*/oc*_event_cnt"
_CHANNELS = (1, 2, 3)
_UNUSED_LABELS = frozenset({"", "NC"})


def rail_channels(system: System) -> tuple[tuple[str, str, int], ...]:
    """(label, folder, channel) of every connected rail. Channels above three are not rails but the
    sum of the shunts."""
    return tuple(
        (label, folder, channel)
        for folder in system.glob(RAIL_FOLDERS)
        for channel in _CHANNELS
        if (label := system.text(f"{folder}/in{channel}_label") or "") not in _UNUSED_LABELS
    )


def read_rails(system: System) -> tuple[Rail, ...]:
    """Every rail with its values, limits and alarms; a rail that gives no value is left out."""
    rails = []
    for label, folder, channel in rail_channels(system):
        millivolt = system.number(f"{folder}/in{channel}_input")
        milliampere = system.number(f"{folder}/curr{channel}_input")
        if millivolt is None or milliampere is None:
            continue
        names = ("max", "crit")
        rails.append(
            Rail(
                name=label,
                millivolt=millivolt,
                milliampere=milliampere,
                max_milliampere=system.number(f"{folder}/curr{channel}_max"),
                critical_milliampere=system.number(f"{folder}/curr{channel}_crit"),
                alarms=tuple(
                    name for name in names if system.number(f"{folder}/curr{channel}_{name}_alarm")
                ),
            )
        )
    return tuple(rails)


def read_zones(system: System) -> tuple[Zone, ...]:
    """Every thermal zone; one whose sensor is switched off has no temperature."""
    return tuple(
        Zone(
            name=(system.text(f"{folder}/type") or folder.rpartition("/")[2]).removesuffix(
                "-thermal"
            ),
            celsius=_celsius(system, f"{folder}/temp"),
            throttle_c=_passive_trip(system, folder),
        )
        for folder in sorted(system.glob(ZONE_FOLDERS), key=_number_at_end)
    )


def _passive_trip(system: System, folder: str) -> float | None:
    """The temperature at which the kernel begins to lower clocks."""
    trips = [
        _celsius(system, kind.replace("_type", "_temp"))
        for kind in system.glob(f"{folder}/trip_point_*_type")
        if system.text(kind) == "passive"
    ]
    return min((trip for trip in trips if trip is not None and trip > 0), default=None)


def _celsius(system: System, path: str) -> float | None:
    value = system.number(path)
    return None if value is None or value <= -256_000 else value / 1e3


def _number_at_end(path: str) -> int:
    found = re.search(r"(\d+)$", path)
    return int(found.group(1)) if found else -1


def read_throttling(system: System) -> Throttling:
    """How often the SoC lowered its clocks for over-current since boot."""
    counts = [
        (path.rpartition("/")[2].removesuffix("_event_cnt"), system.number(path))
        for path in system.glob(OVER_CURRENT_COUNTS)
    ]
    return Throttling(
        over_current_events=tuple((name, count) for name, count in counts if count is not None)
    )
