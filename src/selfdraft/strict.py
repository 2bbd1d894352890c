"""Typed records from JSON, strictly: an unknown or missing key is an error that names it."""

from __future__ import annotations

import difflib
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class StrictError(ValueError):
    """A value does not fit its record; the message says where and what was found."""


def record_from_json(cls: type[T], data: object, *, where: str = "") -> T:
    """Build dataclass ``cls`` from decoded JSON.

    Raises ``StrictError`` for unknown keys (with the closest known one), missing keys and
    values of another type. ``where`` is the path shown in messages, e.g. ``manifest``.
    """
    here = where or cls.__name__
    if not isinstance(data, Mapping):
        raise StrictError(f"{here}: expected an object, found {_shown(data)}")
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    for key in data:
        if key not in known:
            raise StrictError(f"{here}: unknown key {key!r}{closest_hint(str(key), known)}")
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, field in known.items():
        if name in data:
            values[name] = _value_from_json(hints[name], data[name], f"{here}.{name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise StrictError(f"{here}: missing key {name!r}")
    try:
        return cls(**values)
    except ValueError as error:
        raise StrictError(f"{here}: {error}") from error


def closest_hint(name: str, known: Mapping[str, object] | Sequence[str]) -> str:
    """``" (did you mean 'x'?)"`` for the known name nearest to ``name``, else an empty text."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _value_from_json(hint: Any, value: object, where: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _union_from_json(args, value, where)
    if origin is Literal:
        if value not in args:
            raise StrictError(f"{where}: expected one of {list(args)}, found {_shown(value)}")
        return value
    if origin is tuple:
        return _tuple_from_json(args, value, where)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise StrictError(f"{where}: expected an object, found {_shown(value)}")
        return {str(k): _value_from_json(args[1], v, f"{where}.{k}") for k, v in value.items()}
    if is_dataclass(hint):
        return record_from_json(hint, value, where=where)  # type: ignore[arg-type]
    return _scalar_from_json(hint, value, where)


def _union_from_json(options: tuple[Any, ...], value: object, where: str) -> Any:
    if value is None and type(None) in options:
        return None
    errors = []
    for option in options:
        if option is type(None):
            continue
        try:
            return _value_from_json(option, value, where)
        except StrictError as error:
            errors.append(str(error))
    raise StrictError(errors[0] if errors else f"{where}: expected null, found {_shown(value)}")


def _tuple_from_json(args: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise StrictError(f"{where}: expected a list, found {_shown(value)}")
    return tuple(_value_from_json(args[0], v, f"{where}[{i}]") for i, v in enumerate(value))


def _scalar_from_json(hint: Any, value: object, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, bool):
        raise StrictError(f"{where}: expected int, found {_shown(value)}")
    if not isinstance(value, hint):
        raise StrictError(f"{where}: expected {hint.__name__}, found {_shown(value)}")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
