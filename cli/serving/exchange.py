"""One request between the service's thread and the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.types import Receive

from selfdraft.errors import ToolkitError
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import TokenEvent
from selfdraft.runtime.serving.events import Finished, ServiceEvent
from selfdraft.runtime.serving.service import Service

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from selfdraft.runtime.serving.ticket import Ticket


class ClientGone(Exception):
    """The client closed its connection; its request is cancelled."""


class Exchange:
    """A request at work. Leave the context early and it is cancelled, as when its client goes."""

    def __init__(self, service: Service, request: Request, receive: Receive) -> None:
        self._service = service
        self._request = request
        self._receive = receive
        self._events: asyncio.Queue[ServiceEvent | None] = asyncio.Queue()
        """None: the client is gone."""
        self._loop = asyncio.get_running_loop()
        self._ticket: Ticket | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._ended = False

    async def __aenter__(self) -> Self:
        """Queue the request. Raises as ``Service.submit`` does."""
        # It may compile a grammar: not on the event loop.
        try:
            self._ticket = await run_in_threadpool(
                self._service.submit, self._request, on_event=self._put
            )
        except ToolkitError as error:
            # Frames of the thread pool know the error that knows them: a circle for each refusal.
            raise error.with_traceback(None) from None
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        # Forgotten as well: both know this object, and in a circle they would outlive the request.
        watcher, self._watcher = self._watcher, None
        ticket, self._ticket = self._ticket, None
        if watcher is not None:
            watcher.cancel()
        if ticket is not None and not self._ended:
            ticket.cancel()

    async def next(self) -> list[ServiceEvent]:
        """Events that are there, at least one. Raises ``ClientGone``."""
        found = [await self._events.get()]
        while not self._events.empty():
            found.append(self._events.get_nowait())
        events = [event for event in found if event is not None]
        self._ended = any(isinstance(event, Finished) for event in events)
        if len(events) < len(found):
            raise ClientGone
        return events

    def _put(self, event: TokenEvent | Finished) -> None:
        self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._ticket is not None:
            self._ticket.cancel()
        self._events.put_nowait(None)
