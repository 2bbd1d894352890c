"""All checks of the doctor, in the order in which they are shown."""

from __future__ import annotations

from selfdraft.jetson.checks_board import BOARD_CHECKS
from selfdraft.jetson.checks_memory import MEMORY_CHECKS
from selfdraft.jetson.checks_plugins import PLUGIN_CHECKS
from selfdraft.jetson.checks_power import POWER_CHECKS
from selfdraft.jetson.checks_software import SOFTWARE_CHECKS
from selfdraft.jetson.doctor import Check

CHECKS: tuple[Check, ...] = (
    *BOARD_CHECKS,
    *POWER_CHECKS,
    *MEMORY_CHECKS,
    *SOFTWARE_CHECKS,
    *PLUGIN_CHECKS,
)


def check_named(name: str) -> Check:
    """The check ``name``; a ``KeyError`` is a fault of the caller."""
    return {check.name: check for check in CHECKS}[name]
