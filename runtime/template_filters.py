"""The filters a chat template may use: Jinja's own with their results paid for, and those whose
cost must be known before they run written anew.

``tojson`` follows the convention of chat templates: no HTML escaping, non-ASCII kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from jinja2 import pass_environment
from jinja2.filters import FILTERS, make_attrgetter

from selfdraft.runtime.template_fuel import (
    TemplateLimitError,
    format_cost,
    replace_cost,
    size_of,
    spend,
)

TICK, CHARGE, CONCAT = " tick", " charge", " concat"
"""Filters that the metering inserts; their names hold a space, so no template can spell them."""

_FROM_JINJA = (
    "abs capitalize count d default dictsort first float groupby int items last length list lower"
    " map max min reject rejectattr reverse select selectattr sort title trim unique upper"
)


def allowed_filters() -> dict[str, Callable[..., Any]]:
    """Every filter of the sandbox by name."""
    return {
        **{name: _charged(FILTERS[name]) for name in _FROM_JINJA.split()},
        "format": _format,
        "indent": _indent,
        "join": _join,
        "replace": _replace,
        "round": _round,
        "safe": text_of,
        "string": text_of,
        "tojson": _tojson,
        TICK: spend,
        CHARGE: _charge,
        CONCAT: _concat,
    }


def text_of(value: object) -> str:
    """``str(value)``, paid for."""
    spend(size_of(value, printable=True))
    return str(value)


def joined(separator: object, items: Any) -> str:
    """``separator.join`` over the texts of ``items``, paid for."""
    parts = [text_of(item) for item in items]
    between = text_of(separator)
    spend(len(between) * len(parts))
    return between.join(parts)


def _charge(value: Any) -> Any:
    spend(size_of(value))
    return value


def _concat(parts: list[object]) -> str:
    return "".join([text_of(part) for part in parts])


def _charged(function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with its result paid for; lazy results become lists, so that they can be."""

    @wraps(function)
    def charged(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if isinstance(result, Iterator):
            items = []
            for item in result:
                spend(1)
                items.append(item)
            result = items
        return _charge(result)

    return charged


@pass_environment
def _join(environment: Any, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return joined(d, value)


def _replace(text: object, old: object, new: object, count: int | None = None) -> str:
    whole, before, after = text_of(text), text_of(old), text_of(new)
    spend(replace_cost(whole, before, after))
    return whole.replace(before, after, -1 if count is None else count)


def _format(template: object, *args: Any, **kwargs: Any) -> str:
    pattern = text_of(template)
    values = kwargs or args
    spend(format_cost(pattern, values))
    return pattern % values


def _indent(text: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    whole = text_of(text)
    if isinstance(width, int) and width > 1000:
        raise TemplateLimitError(f"it indents by {width}")
    margin = text_of(width) if isinstance(width, str) else " " * width
    lines = (whole + "\n").splitlines()
    spend(len(lines) * len(margin))
    indented = [margin + line if line or blank else line for line in lines[1:]]
    head = lines[:1] if not first else [margin + line for line in lines[:1]]
    return "\n".join(head + indented)


def _round(value: Any, precision: int = 0, method: str = "common") -> Any:
    if not isinstance(precision, int) or abs(precision) > 30:
        raise TemplateLimitError(f"it rounds to {str(precision)[:12]} digits")
    return FILTERS["round"](value, precision, method)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= 16):
        raise TemplateLimitError(f"it indents JSON by {str(indent)[:12]}")
    # An escape sequence of six characters at most, and an indent for each level of nesting.
    spend(size_of(value, printable=True) * (6 + 8 * (indent or 0)))
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    spend(len(text))
    return text
