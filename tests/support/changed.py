"""A frozen record with one value inside it changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

Record = TypeVar("Record")


def changed(record: Record, path: str, value: object) -> Record:
    """``record`` with the field ``path`` (``a.b.c``) set to ``value``."""
    name, _, rest = path.partition(".")
    inner: Any = changed(getattr(record, name), rest, value) if rest else value
    return replace(record, **{name: inner})  # type: ignore[type-var]
