"""Runs one request and sends its reply, whole or as a stream of events."""

from __future__ import annotations

import json
import logging
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from selfdraft.cli.serving.asked import Asked
from selfdraft.cli.serving.exchange import ClientGone, Exchange
from selfdraft.cli.serving.failures import ApiError, api_error
from selfdraft.cli.serving.objects import Objects
from selfdraft.cli.serving.reply_parts import Delta, ReplyParts
from selfdraft.cli.serving.served import Served
from selfdraft.errors import ToolkitError
from selfdraft.runtime.result import GenerationResult, TokenEvent
from selfdraft.runtime.serving.events import Closing, Finished, ServiceEvent

log = logging.getLogger(__name__)

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
DONE = b"data: [DONE]\n\n"


class Answer(Response):
    """The answer to ``asked``.

    Nothing is sent before the first token, so that whatever fails until then has its own status.
    """

    def __init__(self, served: Served, asked: Asked) -> None:
        super().__init__()
        self._served = served
        self._asked = asked
        self._objects = Objects(served=served, asked=asked)
        self._parts = ReplyParts(asked)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request and send its reply."""
        try:
            exchange = Exchange(self._served.service, self._asked.request, receive)
            async with exchange:
                if self._asked.stream:
                    await self._stream(exchange, send)
                else:
                    response = JSONResponse(await self._whole(exchange))
                    await response(scope, receive, send)
        except ClientGone:
            log.info("a client went away; its request is cancelled")
        except (ApiError, ToolkitError) as error:
            await api_error(error).response()(scope, receive, send)

    async def _whole(self, exchange: Exchange) -> Any:
        deltas: list[Delta] = []
        while True:
            delta, result = self._taken(await exchange.next())
            deltas.append(delta)
            if result is not None:
                return self._objects.whole(self._parts, deltas, result)

    async def _stream(self, exchange: Exchange, send: Send) -> None:
        delta, result = self._taken(await exchange.next())
        await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
        for chunk in self._objects.opening():
            await _send_event(send, chunk)
        try:
            while True:
                for chunk in self._objects.piece(delta):
                    await _send_event(send, chunk)
                if result is not None:
                    break
                delta, result = self._taken(await exchange.next())
            for chunk in self._objects.closing(self._parts, result):
                await _send_event(send, chunk)
            await _send(send, DONE)
        except ApiError as error:
            # The status is sent already: clients find the error in the stream.
            await _send_event(send, error.to_json())
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _taken(self, events: list[ServiceEvent]) -> tuple[Delta, GenerationResult | None]:
        """What ``events`` add, and the result where they end the reply. Raises ``ApiError``."""
        delta = self._parts.take([event for event in events if isinstance(event, TokenEvent)])
        end = events[-1]
        if not isinstance(end, Finished):
            return delta, None
        self._served.metrics.note_end(end)
        if end.outcome != "done" or end.result is None:
            raise _failure(end)
        rest = self._parts.finish(end.result)
        whole = Delta(
            answer=delta.answer + rest.answer,
            thought=delta.thought + rest.thought,
            events=delta.events,
        )
        return whole, end.result


def _failure(end: Finished) -> ApiError:
    """Why a request did not come to its end."""
    if end.outcome == "cancelled":
        return api_error(Closing())  # nobody else cancels, but a client that is gone
    error = end.error or RuntimeError(end.outcome)
    found = api_error(error)
    if found.status == 500:
        log.error("a request failed", exc_info=error)
    return found


async def _send_event(send: Send, record: Any) -> None:
    data = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    await _send(send, f"data: {data}\n\n".encode())


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
