"""Which module this is: by the SoC, the board's specification, memory, CPUs and power modes.

The model string is shown but decides nothing: carrier makers write what they like there.
"""

from __future__ import annotations

import re

from selfdraft.jetson.device import Clocks, Identity, Memory, PowerState
from selfdraft.jetson.modules import Module, module_with_part, modules
from selfdraft.jetson.system import System

COMPATIBLE_PATH = "/proc/device-tree/compatible"
MODEL_PATH = "/proc/device-tree/model"
BOOT_CONTROL_PATH = "/etc/nv_boot_control.conf"
CPUS_PATH = "/sys/devices/system/cpu/possible"

_SPEC = re.compile(r"^(TNSPEC|COMPATIBLE_SPEC)\s+(\S+)", re.MULTILINE)
_SPEC_PART = re.compile(r"(\d{4})-\w*-(\d{4})-", re.ASCII)
_PART = re.compile(r"\bp(3701|3767)-(\d{4})\b")
_SOC = re.compile(r"\bnvidia,(tegra\d+)\b")


def read_identity(system: System, *, memory: Memory, clocks: Clocks, power: PowerState) -> Identity:
    """The board, with what told it."""
    compatible = (system.text(COMPATIBLE_PATH) or "").replace("\0", " ")
    soc = _SOC.search(compatible)
    specs = dict(_SPEC.findall(system.text(BOOT_CONTROL_PATH) or ""))
    part = _part_number(specs, compatible)
    evidence = [f"compatible {soc.group()}"] if soc else []
    module = None
    if soc and soc.group(1) == "tegra234":
        module, reasons = _module(system, part, memory=memory, clocks=clocks, power=power)
        evidence += reasons
    return Identity(
        architecture=system.architecture,
        soc=soc.group(1) if soc else None,
        model=system.text(MODEL_PATH),
        tnspec=specs.get("TNSPEC"),
        part_number=part,
        super_config=_is_super(specs, compatible, power),
        module_name=module.name if module else None,
        evidence=tuple(evidence),
    )


def _part_number(specs: dict[str, str], compatible: str) -> str | None:
    for name in ("TNSPEC", "COMPATIBLE_SPEC"):
        found = _SPEC_PART.match(specs.get(name, ""))
        if found is not None:
            return f"p{found.group(1)}-{found.group(2)}"
    found = _PART.search(compatible)
    return found.group() if found else None


def _is_super(specs: dict[str, str], compatible: str, power: PowerState) -> bool:
    named = any("-super" in text for text in (*specs.values(), compatible))
    return named or any(mode.name == "MAXN_SUPER" for mode in power.modes)


def _module(
    system: System, part: str | None, *, memory: Memory, clocks: Clocks, power: PowerState
) -> tuple[Module | None, list[str]]:
    """The module and the reasons: the part number where memory agrees with it, else the hardware
    where only one module has it."""
    num_cpus = _count_of_range(system.text(CPUS_PATH) or "")
    fitting = [
        module
        for module in modules()
        if _fits(module, memory=memory, num_cpus=num_cpus, clocks=clocks)
    ]
    named = module_with_part(part) if part else None
    size = f"memory {memory.total_bytes / 2**30:.1f} GiB"
    hardware = [size] + ([f"{num_cpus} CPUs"] if num_cpus else [])
    hardware += [f"{clocks.num_tpcs} TPCs on"] if clocks.num_tpcs else []
    if named is not None and _memory_fits(named, memory):
        return named, [f"part {part}", *hardware]
    if named is not None:
        hardware.insert(0, f"part {part} does not fit")
    if len(fitting) > 1:
        fitting = [module for module in fitting if _has_modes(module, power)]
        hardware.append("names of the power modes")
    return (fitting[0], hardware) if len(fitting) == 1 else (None, hardware)


def _fits(module: Module, *, memory: Memory, num_cpus: int | None, clocks: Clocks) -> bool:
    return (
        _memory_fits(module, memory)
        and num_cpus in (None, module.num_cpus)
        and (clocks.num_tpcs or 0) <= module.num_tpcs
    )


def _memory_fits(module: Module, memory: Memory) -> bool:
    return module.min_mem_total_mib <= memory.total_bytes >> 20 <= module.max_mem_total_mib


def _has_modes(module: Module, power: PowerState) -> bool:
    names = {mode.name for mode in power.modes}
    configurations = (module.modes(super_config=flag) for flag in (False, True))
    return bool(names) and any(names <= {m.name for m in modes} for modes in configurations)


def _count_of_range(text: str) -> int | None:
    """12 of ``0-11``."""
    found = re.fullmatch(r"0(?:-(\d{1,4}))?", text, re.ASCII)
    return int(found.group(1) or 0) + 1 if found else None
