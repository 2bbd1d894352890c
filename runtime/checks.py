"""Checks of single option values, in the words that name the option."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from selfdraft.errors import ConfigError


def check_number(
    name: str, value: Any, holds: Callable[[Any], bool], wanted: str, *, whole: bool = False
) -> None:
    """Raise ``ConfigError`` unless ``value`` is None, or a (whole) number for which ``holds``."""
    if value is None:
        return
    number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not number or not holds(value):
        raise ConfigError(f"{name} is {value!r}", hint=f"give {name} {wanted}")
