"""Limits of a service."""

from __future__ import annotations

import math
from dataclasses import dataclass

from selfdraft.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """What a service takes in, and how long it lets things take. Raises ``ConfigError``."""

    max_waiting: int = 64
    """Requests that may wait for a slot; 0: none waits."""
    max_waiting_tokens: int | None = None
    """Tokens of the prompts that may wait together; None: any number."""
    queue_timeout_s: float | None = None
    """A request that waited so long for a slot is given up; None: never."""
    request_timeout_s: float | None = None
    """From ``submit`` to the end, where ``submit`` gives no time of its own; None: any time."""
    target_gap_ms: float = 200.0
    """Chunks of prompts are cut so that a running stream waits no longer than this for a step, where
    chunks of the least size allow it."""
    memory_floor_bytes: int = 256 * 2**20
    """Free memory that has to stay when a request is taken in, beyond what its cache may come to fill."""

    def __post_init__(self) -> None:
        if self.max_waiting < 0:
            raise ConfigError(f"max_waiting is {self.max_waiting}", hint="give it a value from 0")
        for name in ("max_waiting_tokens", "queue_timeout_s", "request_timeout_s"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(
                    f"{name} is {value}", hint="give a number above 0, or leave it out"
                )
        if not (self.target_gap_ms > 0 and math.isfinite(self.target_gap_ms)):
            raise ConfigError(
                f"target_gap_ms is {self.target_gap_ms}", hint="give a number of ms above 0"
            )
        if self.memory_floor_bytes < 0:
            raise ConfigError(
                f"memory_floor_bytes is {self.memory_floor_bytes}", hint="give a number from 0"
            )
