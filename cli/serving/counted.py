"""Counts responses by path and status."""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from selfdraft.cli.serving.metrics import OTHER_PATH, ServerMetrics


class Counted:
    """Wraps the application; paths that it does not know are one path, lest they fill memory."""

    def __init__(self, app: ASGIApp, *, metrics: ServerMetrics, paths: Collection[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self._paths else OTHER_PATH

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.note_response(path, message["status"])
            await send(message)

        await self._app(scope, receive, counting)
