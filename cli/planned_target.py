"""The board that a plan is for: a row of the module table, and a power mode by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from selfdraft.errors import ConfigError
from selfdraft.strict import closest_hint

if TYPE_CHECKING:
    from selfdraft.jetson.modules import Module, PowerMode
    from selfdraft.jetson.planner.plan import Target

DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        envvar="SELFDRAFT_DEVICE",
        metavar="NAME",
        help="Module: agx-orin-64, agx-orin-32, orin-nx-16, orin-nx-8, orin-nano-8, …",
    ),
]
PowerOption = Annotated[
    str | None,
    typer.Option(
        "--power",
        metavar="MODE",
        help="Power mode by name, e.g. MAXN or MODE_30W.",
        show_default="the fastest",
    ),
]
AvailableOption = Annotated[
    float | None,
    typer.Option(
        "--available",
        min=0.1,
        metavar="GIB",
        help="Free memory of the board in GiB, as MemAvailable says.",
        show_default="a booted board without a desktop",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTarget:
    """A module in a mode, and what the planner counts with."""

    module: Module
    mode: PowerMode
    target: Target

    @property
    def default_mode(self) -> PowerMode:
        """The mode after flashing, in the configuration of ``mode``."""
        return self.module.default_mode(super_config=self.mode.super_config)


def planned_target(device: str, *, power: str | None, available_gib: float | None) -> PlannedTarget:
    """Raises ``ConfigError`` naming the devices, or the modes of the device."""
    from selfdraft.jetson.modules import module_named

    module = module_named(device)
    mode = _mode(module, power)
    return PlannedTarget(
        module=module, mode=mode, target=target_in(module, mode, available_gib=available_gib)
    )


def target_in(module: Module, mode: PowerMode, *, available_gib: float | None) -> Target:
    """The planner's view of a module in a mode."""
    from selfdraft.jetson.planner.calibration import REFERENCE_FRAMEWORK, fitted
    from selfdraft.jetson.planner.memory import GIB, available_bytes
    from selfdraft.jetson.planner.plan import Target
    from selfdraft.jetson.planner.speed import clocks_of

    free = available_bytes(module) if available_gib is None else int(available_gib * GIB)
    return Target(
        clocks=clocks_of(module, mode),
        efficiencies=fitted().of(REFERENCE_FRAMEWORK),
        available_bytes=free,
        available_measured=available_gib is not None,
    )


def _mode(module: Module, name: str | None) -> PowerMode:
    """The mode ``name`` of the plain configuration, else of Super; None: the fastest there is."""
    if name is None:
        return module.fastest_mode(super_config=True)
    found = [mode for mode in module.power_modes if mode.name == name]
    if not found:
        known = list(dict.fromkeys(mode.name for mode in module.power_modes))
        raise ConfigError(
            f"{module.title} has no power mode {name!r}{closest_hint(name, known)}",
            hint=f"modes: {', '.join(known)}",
        )
    return min(found, key=lambda mode: mode.super_config)
