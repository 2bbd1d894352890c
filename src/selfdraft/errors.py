"""Errors that a user can mend.

ToolkitError            exit 1
├── ConfigError         exit 2   an option, request or checkpoint is wrong
├── BundleError         exit 3   a bundle or engine does not match what it says or where it runs
├── ResourceError       exit 4   memory, disk or context space is short
├── DeviceError         exit 5   the device or its engine library is missing or fails
└── VerificationError   exit 6   a check ran and its result is not the expected one
"""

from __future__ import annotations


class ToolkitError(Exception):
    """A problem the user can mend: what was found, and the next step.

    ``problem`` is one line with the values found. ``hint`` is the next command or value.
    The CLI prints both to stderr and exits with ``exit_code``.
    """

    exit_code = 1

    def __init__(self, problem: str, *, hint: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


class ConfigError(ToolkitError):
    """An option, a request or a checkpoint is wrong."""

    exit_code = 2


class BundleError(ToolkitError):
    """A bundle or engine does not match what it says, or the place where it runs."""

    exit_code = 3


class ResourceError(ToolkitError):
    """Memory, disk or context space is short, or a path cannot be written."""

    exit_code = 4


class DeviceError(ToolkitError):
    """A device or its engine library is missing, or fails."""

    exit_code = 5


class VerificationError(ToolkitError):
    """A check ran to its end, and its result is not the expected one."""

    exit_code = 6
