"""Who may ask: the key, and the names that a browser may know the server by."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from selfdraft.cli.serving.failures import ApiError
from selfdraft.cli.serving.settings import LOOPBACK_NAMES, ServerSettings

OPEN_PATHS = ("/health",)
"""What anybody may read."""


class Access:
    """Lets through what may pass.

    A page in a browser on this machine can reach loopback addresses under a name of its own (DNS
    rebinding), so a server without a key that is bound there answers to the loopback names only.
    """

    def __init__(self, app: ASGIApp, *, settings: ServerSettings) -> None:
        self._app = app
        self._key = settings.api_key.encode() if settings.api_key else None
        self._checks_host = settings.is_local and self._key is None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http":
            refusal = self._refusal(scope["path"], Headers(scope=scope))
            if refusal is not None:
                await refusal.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> ApiError | None:
        if self._checks_host and _host(headers.get("host", "")) not in LOOPBACK_NAMES:
            return ApiError(
                403, "this server answers to localhost only, or with an API key", code="wrong_host"
            )
        if self._key is None or path in OPEN_PATHS:
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        # Header values are latin-1; the comparison takes the same time wherever they differ.
        same = hmac.compare_digest(given.strip().encode("latin-1"), self._key)
        if kind.lower() == "bearer" and same:
            return None
        return ApiError(401, "the API key is missing or wrong", code="invalid_api_key")


def _host(header: str) -> str:
    """The name in a ``Host`` header, without port and brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()
