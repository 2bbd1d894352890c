"""Typed values from config.json, and the refusals that it alone decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from selfdraft.errors import ConfigError

MAX_NUMBER = 1e30


@dataclass(frozen=True, slots=True)
class ConfigKeys:
    """Reads keys of ``config.json``; a key that is absent or null reads as None.

    Raises ``ConfigError`` naming key and value when a value has another type.
    """

    values: Mapping[str, Any]
    where: str = "config.json"

    def integer(self, key: str) -> int | None:
        value = self.values.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self._wrong(key, "a whole number")
        return value

    def number(self, key: str) -> float | None:
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(key, "a number")
        if not abs(value) <= MAX_NUMBER:  # NaN, infinity, or an integer that no float holds
            raise self._wrong(key, "a finite number")
        return float(value)

    def flag(self, key: str) -> bool | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self._wrong(key, "a text")
        return value

    def section(self, key: str) -> ConfigKeys | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._wrong(key, "an object")
        return ConfigKeys(value, f"{self.where} {key}")

    def positive(self, key: str) -> int | None:
        value = self.integer(key)
        if value is not None and value < 1:
            raise self._wrong(key, "at least 1")
        return value

    def _wrong(self, key: str, expected: str) -> ConfigError:
        found = repr(self.values[key])
        shown = found if len(found) <= 60 else found[:57] + "..."
        return ConfigError(
            f"{self.where}: {key} is {shown}, expected {expected}",
            hint=f"restore the {self.where.split()[0]} that came with the checkpoint",
        )


def not_supported(what: str, *, hint: str) -> ConfigError:
    """The refusal of a model feature that this version cannot run exactly."""
    return ConfigError(f"{what} is not supported in this version", hint=hint)
