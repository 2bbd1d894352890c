"""What a template may cost, paid before it is spent.

Every value a template makes, every loop pass and every call costs units (about one a character
or object). The cost of a value is known before it is made, so ``'a' * 10**10`` never allocates.
A deadline is looked at with each payment.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from jinja2 import Undefined

_MAX_PADDING = 1000


class TemplateLimitError(Exception):
    """A template asked for more time, memory or reach than it may have."""


@dataclass(slots=True, kw_only=True)
class Fuel:
    """What one rendering may still cost."""

    units: int
    deadline: float
    """Reading of ``clock`` after which rendering stops."""
    clock: Callable[[], float] = time.monotonic

    def spend(self, units: int) -> None:
        """Pay for something; raises ``TemplateLimitError`` when it cannot be paid."""
        self.units -= max(1, units)
        if self.units < 0:
            raise TemplateLimitError("it makes too much text or loops too often")
        if self.clock() > self.deadline:
            raise TemplateLimitError("it takes too long")


_fuel: ContextVar[Fuel] = ContextVar("template_fuel")


@contextmanager
def metered(fuel: Fuel) -> Iterator[None]:
    """Renderings inside spend ``fuel``."""
    token = _fuel.set(fuel)
    try:
        yield
    finally:
        _fuel.reset(token)


def spend(units: int) -> None:
    """Pay from the current rendering's fuel."""
    _fuel.get().spend(units)


_PLAIN = (str, int, float, bool, type(None), Undefined, range)
_COLLECTIONS = (list, tuple, set, KeysView, ValuesView, ItemsView)


def size_of(value: object, *, printable: bool = False) -> int:
    """Characters and objects of ``value``; a part that occurs twice counts twice, as in print.

    Stops counting where the fuel would not pay any more. ``printable`` refuses objects whose
    text no template needs (macros, loops, namespaces).
    """
    limit = _fuel.get().units
    total, stack = 0, [value]
    while stack and total <= limit:
        item = stack.pop()
        total += 1
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, int):
            total += item.bit_length() // 3
        elif isinstance(item, dict):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, _COLLECTIONS):
            stack.extend(item)
        elif printable and not isinstance(item, _PLAIN):
            raise TemplateLimitError(f"it prints an object of type {type(item).__name__}")
    return total


def binop_cost(operator: str, left: Any, right: Any) -> int:
    """Cost of ``left operator right`` for ``+``, ``*``, ``**`` and ``%``."""
    if operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(times, int) and not isinstance(value, (int, float)):
                return size_of(value) * max(0, times)
        return size_of(left) + size_of(right)
    if operator == "**":
        whole = isinstance(left, int) and isinstance(right, int)
        return left.bit_length() * max(0, right) // 3 if whole else 1
    if operator == "%":
        return format_cost(left, right) if isinstance(left, str) else 1
    return size_of(left) + size_of(right)


_SPEC = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d*)(?:\.(\*|\d*))?")


def format_cost(template: str, values: object) -> int:
    """Cost of ``template % values``; every conversion may print all values and its padding."""
    spend(len(template))
    padding = 0
    specs = 0
    for width, precision in _SPEC.findall(template):
        specs += 1
        for number in (width, precision):
            if number == "*" or len(number) > 4 or int(number or 0) > _MAX_PADDING:
                raise TemplateLimitError(f"it pads text to width {number[:12]}")
            padding += int(number or 0)
    return padding + specs * size_of(values, printable=True)


def replace_cost(text: str, old: str, new: str) -> int:
    """Size of ``text.replace(old, new)``."""
    found = text.count(old) if old else len(text) + 1
    return len(text) + found * len(new)
