"""Checks of a device: what was found, what follows from it, and the command that mends it.

A check is data plus one small function that looks at the device's record. Nothing here changes
anything; the commands are for the reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from selfdraft.jetson.device import Device

Severity = Literal["notice", "warning", "failure"]
Status = Literal["ok", "notice", "warning", "failure", "unknown"]
Scope = Literal["any", "jetson", "orin"]
SEVERITIES: tuple[Severity, ...] = ("notice", "warning", "failure")
_PLACEHOLDER = re.compile(r"<(\w+)>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a check saw. ``values`` fill the ``<name>`` places of the check's command."""

    kind: Literal["ok", "trouble", "unknown"]
    found: str
    values: dict[str, str] = field(default_factory=dict)


def fine(found: str) -> Outcome:
    """Nothing is wrong."""
    return Outcome(kind="ok", found=found)


def trouble(found: str, **values: str) -> Outcome:
    """What the check is for is the case."""
    return Outcome(kind="trouble", found=found, values=values)


def unknown(found: str) -> Outcome:
    """The device does not tell."""
    return Outcome(kind="unknown", found=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing to look for.

    ``severity``: a failure stops selfdraft from working as asked, a warning costs speed, memory or
    an error later, a notice is good to know. ``kinds`` are numbers of ``kinds.KINDS``. ``mend`` is
    what to type; where nothing can be typed it says what to do, beginning with ``#``.
    """

    name: str
    title: str
    severity: Severity
    consequence: str
    mend: str
    detect: Callable[[Device], Outcome]
    scope: Scope = "orin"
    kinds: tuple[int, ...] = ()

    def applies_to(self, device: Device) -> bool:
        """Whether the check means anything on this device."""
        if self.scope == "orin":
            return device.identity.is_orin
        return self.scope == "any" or device.identity.is_jetson


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A check's result; ``consequence`` and ``mend`` stand only where something is wrong."""

    check: str
    status: Status
    found: str
    consequence: str | None
    mend: str | None
    kinds: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All findings about one device, in the order of the checks; ``left_out`` are the names of
    checks that mean nothing on it."""

    device: Device
    findings: tuple[Finding, ...]
    left_out: tuple[str, ...]

    def with_status(self, status: Status) -> tuple[Finding, ...]:
        """The findings of one status."""
        return tuple(finding for finding in self.findings if finding.status == status)

    @property
    def worst(self) -> Severity | None:
        """The gravest severity found; ``None`` when nothing is wrong."""
        found = {finding.status for finding in self.findings}
        return next((s for s in reversed(SEVERITIES) if s in found), None)


def diagnose(device: Device, checks: Sequence[Check]) -> Diagnosis:
    """Run every check that applies to the device."""
    applying = [check for check in checks if check.applies_to(device)]
    return Diagnosis(
        device=device,
        findings=tuple(run_check(check, device) for check in applying),
        left_out=tuple(check.name for check in checks if check not in applying),
    )


def run_check(check: Check, device: Device) -> Finding:
    """The result of one check."""
    outcome = check.detect(device)
    is_trouble = outcome.kind == "trouble"
    return Finding(
        check=check.name,
        status=check.severity if is_trouble else "ok" if outcome.kind == "ok" else "unknown",
        found=outcome.found,
        consequence=check.consequence if is_trouble else None,
        mend=_filled(check.mend, outcome.values) if is_trouble else None,
        kinds=check.kinds,
    )


def _filled(template: str, values: dict[str, str]) -> str:
    """The command with its places filled; a place without a value is a fault of the check."""
    return _PLACEHOLDER.sub(lambda place: values[place.group(1)], template)
