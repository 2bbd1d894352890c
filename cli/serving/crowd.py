"""Refuses requests while too many connections are open."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from selfdraft.cli.serving.failures import BUSY_RETRY_S, ApiError


class Crowd:
    """Lets requests through while at most ``most`` connections are open.

    In place of uvicorn's own limit, whose refusal is plain text, where clients expect an object.
    """

    def __init__(self, app: ASGIApp, *, most: int, num_open: Callable[[], int]) -> None:
        self._app = app
        self._most = most
        self._num_open = num_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it and close its connection."""
        if scope["type"] != "http" or self._num_open() <= self._most:
            await self._app(scope, receive, send)
            return
        refusal = ApiError(
            503,
            f"too many connections are open: {self._most} may be",
            code="too_many_connections",
            retry_after_s=BUSY_RETRY_S,
        )
        response = refusal.response()
        response.headers["Connection"] = "close"
        await response(scope, receive, send)
