"""Comma-separated values of options."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from selfdraft.errors import ConfigError

Number = TypeVar("Number", int, float)


def numbers(
    option: str,
    text: str | None,
    kind: Callable[[str], Number],
    least: float,
    most: float = math.inf,
) -> tuple[Number, ...] | None:
    """Numbers of a comma-separated option, each between ``least`` and ``most``."""
    if text is None:
        return None
    try:
        values = tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"{option} is {text!r}", hint=f"give numbers: {'0.9,0.7' if kind is float else '1,2,3'}"
        ) from None
    wrong = next((value for value in values if not least <= value <= most), None)
    if wrong is not None:
        upper = "" if most == math.inf else f" to {most:g}"
        raise ConfigError(f"{option} has {wrong}", hint=f"choose from {least:g}{upper}")
    return values
