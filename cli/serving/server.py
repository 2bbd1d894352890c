"""The application on a socket, until a signal ends it gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence

import uvicorn

from selfdraft.cli.serving.app import application
from selfdraft.cli.serving.served import Served
from selfdraft.cli.serving.settings import ServerSettings
from selfdraft.errors import ConfigError

SENDING_S = 5.0
"""After the last token of a shutdown, for what is still on its way to clients."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Server(uvicorn.Server):
    """Closes the service when it is told to end: running replies have ``drain_s`` to finish."""

    def __init__(self, served: Served) -> None:
        settings = served.settings
        super().__init__(
            uvicorn.Config(
                application(served, num_open=lambda: len(self.server_state.connections)),
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                timeout_graceful_shutdown=int(settings.drain_s + SENDING_S),
            )
        )
        self._service = served.service
        self._drain_s = settings.drain_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests, let those at work finish, then end their streams."""
        closing = asyncio.create_task(asyncio.to_thread(self._service.close, self._drain_s))
        await super().shutdown(sockets)
        if self.force_exit:
            await asyncio.to_thread(self._service.close, 0.0)
        await closing

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let signals end the server; unlike uvicorn's own, they are not raised again afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def bound_socket(settings: ServerSettings) -> socket.socket:
    """A listening socket at the address. Raises ``ConfigError`` where it cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=256)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None)
        # A failed look-up of a name has a number of its own, below 0.
        why = os.strerror(number) if number and number > 0 else "no such host"
        taken = number == errno.EADDRINUSE
        raise ConfigError(
            f"cannot listen at {settings.host} port {settings.port}: {why}",
            hint="is a server running there already? --port 0 takes a free port"
            if taken
            else "choose another --host, or another --port",
        ) from None


def address_of(listener: socket.socket) -> str:
    """``http://host:port`` of a listening socket."""
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(server: Server, listeners: Sequence[socket.socket]) -> None:
    """Serve on ``listeners`` until a signal, or until ``server.should_exit`` is set."""
    server.run(sockets=list(listeners))
