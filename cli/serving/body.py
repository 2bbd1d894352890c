"""The body of a request: read within limits, and taken apart field by field."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from selfdraft.cli.serving.failures import ApiError
from selfdraft.cli.serving.settings import ServerSettings

Kind = TypeVar("Kind")
NAMES: dict[type, str] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    dict: "an object",
}


async def read_object(request: Request, settings: ServerSettings) -> dict[str, Any]:
    """The JSON object in the body. Raises ``ApiError``."""
    # Browsers send other types to any address without asking first.
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "the body must be JSON: Content-Type: application/json")
    try:
        raw = await asyncio.wait_for(
            _read(request, settings.max_body_bytes), settings.body_timeout_s
        )
    except asyncio.TimeoutError:
        raise ApiError(408, "the body did not arrive in time") from None
    except ClientDisconnect:
        raise ApiError(400, "the body ended early") from None
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {str(error)[:200]}") from None
    if not isinstance(data, dict):
        raise ApiError(400, "the body is no JSON object")
    return data


async def _read(request: Request, limit: int) -> bytes:
    """The body, refused as soon as it is known to be too long."""
    length = request.headers.get("content-length", "")
    parts, size = [], int(length) if length.isdecimal() else 0
    if size <= limit:
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > limit:
                break
            parts.append(part)
    if size > limit:
        raise ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")
    return b"".join(parts)


class Fields:
    """Fields of a body, each taken once; ``null`` is as good as left out."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = dict(data)

    def take(self, name: str, kind: type[Kind]) -> Kind | None:
        """The field, None where it is left out. Raises ``ApiError`` for another type."""
        value = self._data.pop(name, None)
        wrong = isinstance(value, bool) and kind is not bool
        if value is not None and (wrong or not isinstance(value, kind)):
            raise wrong_field(name, f"{name} must be {NAMES[kind]}")
        return value

    def take_any(self, name: str) -> Any:
        """The field, whatever it is."""
        return self._data.pop(name, None)

    def rest(self) -> dict[str, Any]:
        """What was not taken, ``null`` too: its name may be unknown."""
        return dict(self._data)


def wrong_field(name: str, message: str) -> ApiError:
    """A refusal that names the field."""
    return ApiError(400, message, code="invalid_value", param=name)
