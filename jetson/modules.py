"""The Orin modules: what each has, and what its power modes leave of it.

Numbers come from NVIDIA's data sheets and from the nvpmodel configurations that L4T installs.
The table is data (``modules.json``); what it does not know is ``None``, never a guess.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib.resources import files

from selfdraft.errors import ConfigError
from selfdraft.strict import closest_hint, record_from_json

SMS_PER_TPC = 2
TENSOR_CORES_PER_SM = 4
FP16_FLOPS_PER_TENSOR_CORE = 512
"""Dense, a multiply and an add counted apart, per clock: 64 cores at 1300.5 MHz give 43 TFLOPS."""
COMPUTE_CAPABILITY = 87
"""8.7, as in sm_87."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerMode:
    """What a mode of nvpmodel leaves: caps of clocks, and what stays switched on.

    Ids differ between modules, and between the plain and the Super configuration of one module:
    modes are matched by name. ``gpu_mhz`` and ``emc_mhz`` are the highest clocks of the mode.
    """

    name: str
    id: int
    super_config: bool
    default: bool
    num_cpus: int
    cpu_mhz: float
    gpu_mhz: float
    num_tpcs: int
    emc_mhz: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module as sold; clocks are those of its plain configuration, ``super_*`` of the other.

    ``min_mem_total_mib`` … ``max_mem_total_mib`` is where Linux' MemTotal lies, below
    ``memory_gib`` by what firmware keeps for itself.
    """

    name: str
    title: str
    part_numbers: tuple[str, ...]
    memory_gib: int
    min_mem_total_mib: int
    max_mem_total_mib: int
    bus_bits: int
    num_cpus: int
    num_tpcs: int
    max_gpu_mhz: float
    super_gpu_mhz: float | None
    max_emc_mhz: float
    super_emc_mhz: float | None
    l2_bytes: int | None
    power_modes: tuple[PowerMode, ...]

    @property
    def num_sms(self) -> int:
        """Streaming multiprocessors of the whole GPU."""
        return self.num_tpcs * SMS_PER_TPC

    def bandwidth_gb_s(self, *, emc_mhz: float | None = None) -> float:
        """Peak memory bandwidth in 1e9 bytes per second at ``emc_mhz`` (default: the highest
        clock of the plain configuration); LPDDR5 moves two words a clock."""
        return self.bus_bits / 8 * 2 * (emc_mhz or self.max_emc_mhz) / 1e3

    def fp16_tflops(self, *, gpu_mhz: float | None = None, num_tpcs: int | None = None) -> float:
        """Peak dense fp16 rate of the tensor cores in 1e12 operations per second."""
        cores = (num_tpcs or self.num_tpcs) * SMS_PER_TPC * TENSOR_CORES_PER_SM
        return cores * FP16_FLOPS_PER_TENSOR_CORE * (gpu_mhz or self.max_gpu_mhz) / 1e6

    def modes(self, *, super_config: bool) -> tuple[PowerMode, ...]:
        """The modes of one configuration; of the plain one where there is no Super."""
        chosen = tuple(mode for mode in self.power_modes if mode.super_config == super_config)
        return chosen or tuple(mode for mode in self.power_modes if not mode.super_config)

    def mode(self, name: str, *, super_config: bool = False) -> PowerMode:
        """The mode ``name``; raises ``ConfigError`` with the names there are."""
        known = {mode.name: mode for mode in self.modes(super_config=super_config)}
        if name not in known:
            raise ConfigError(
                f"{self.title} has no power mode {name!r}{closest_hint(name, known)}",
                hint=f"modes: {', '.join(known)}",
            )
        return known[name]

    def fastest_mode(self, *, super_config: bool = False) -> PowerMode:
        """The mode with the highest GPU clock, then most TPCs, then the memory clock."""
        modes = self.modes(super_config=super_config)
        return max(modes, key=lambda m: (m.gpu_mhz * m.num_tpcs, m.emc_mhz, "MAXN" in m.name))

    def default_mode(self, *, super_config: bool = False) -> PowerMode:
        """The mode after flashing."""
        return next(mode for mode in self.modes(super_config=super_config) if mode.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    modules: tuple[Module, ...]


@functools.cache
def modules() -> tuple[Module, ...]:
    """All known modules, the largest first."""
    text = (files("selfdraft.jetson") / "modules.json").read_text(encoding="utf-8")
    return record_from_json(_Table, json.loads(text)).modules


def module_named(name: str) -> Module:
    """The module ``name`` (``agx-orin-64``); raises ``ConfigError`` with the names there are."""
    known = {module.name: module for module in modules()}
    if name not in known:
        raise ConfigError(
            f"unknown device {name!r}{closest_hint(name, known)}",
            hint=f"devices: {', '.join(known)}",
        )
    return known[name]


def module_with_part(part_number: str) -> Module | None:
    """The module that bears ``part_number`` (``p3701-0005``)."""
    return next((m for m in modules() if part_number in m.part_numbers), None)
