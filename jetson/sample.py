"""One look at a running board: loads, clocks, temperatures, power."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

SUPPLY_RAIL = "VDD_IN"
"""The one rail that measures a whole Orin NX or Nano."""
AGX_RAILS = ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")
"""Rails that together are an AGX Orin; VDDQ_VDD2_1V8AO is fed from VIN_SYS_5V0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Bytes in use, of how many; ``cached`` is swap held in memory too."""

    used_bytes: int
    total_bytes: int
    cached_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A unit's share of use in percent, and its clocks in MHz (one per cluster)."""

    percent: int | None
    mhz: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A fixed-function engine; ``None`` for both: it is off."""

    name: str
    percent: int | None = None
    mhz: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Temperature:
    """A zone's temperature and its highest so far; ``None``: no sensor."""

    name: str
    celsius: float | None
    highest_c: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RailPower:
    """A rail's power: now, average, highest."""

    name: str
    now_mw: int
    average_mw: int | None = None
    highest_mw: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardSample:
    """What tegrastats or sysfs showed at one moment; absent parts are ``None`` or empty.

    ``largest_free`` is (blocks, bytes of one). A CPU that is off is ``None``.
    """

    time: datetime | None = None
    ram: Usage | None = None
    largest_free: tuple[int, int] | None = None
    swap: Usage | None = None
    cpus: tuple[Load | None, ...] = ()
    emc: Load | None = None
    gpu: Load | None = None
    second_gpu: Load | None = None
    engines: tuple[Engine, ...] = ()
    temperatures: tuple[Temperature, ...] = ()
    rails: tuple[RailPower, ...] = ()

    @property
    def power_mw(self) -> int | None:
        """Power of the whole module now, from the rails that add up to it."""
        now = {rail.name: rail.now_mw for rail in self.rails}
        if SUPPLY_RAIL in now:
            return now[SUPPLY_RAIL]
        if all(name in now for name in AGX_RAILS):
            return sum(now[name] for name in AGX_RAILS)
        return None

    @property
    def hottest(self) -> Temperature | None:
        """The zone with the highest temperature."""
        known = [zone for zone in self.temperatures if zone.celsius is not None]
        return max(known, key=lambda zone: zone.celsius or 0.0, default=None)
