"""A server around an open bundle: its service, its application, its socket."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from selfdraft.cli.serving.served import Served, serve_session
from selfdraft.cli.serving.server import Server, address_of, bound_socket, run_server
from selfdraft.cli.serving.settings import ServerSettings
from selfdraft.cli.session import Session
from selfdraft.runtime.serving.options import ServingOptions
from selfdraft.runtime.serving.scheduler import Scheduler
from selfdraft.runtime.serving.service import Service
from selfdraft.runtime.telemetry.meter import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenServer:
    """A server that listens, and takes requests once it runs."""

    served: Served
    server: Server
    listener: socket.socket

    @property
    def url(self) -> str:
        """Its address, as clients on this machine write it."""
        return address_of(self.listener)

    def run(self) -> None:
        """Serve until a signal."""
        run_server(self.server, [self.listener])

    def stop(self) -> None:
        """Let ``run`` end, as a signal does; from any thread."""
        self.server.should_exit = True


@contextmanager
def open_server(
    session: Session, settings: ServerSettings, options: ServingOptions, *, slots: int
) -> Iterator[OpenServer]:
    """A server for ``session``; its service is closed at the end of the context.

    Raises ``ConfigError`` for an address that cannot be had or a template that cannot be used, and
    ``ResourceError`` where the caches of ``slots`` slots find no room.
    """
    listener = bound_socket(settings)
    with listener:
        telemetry = Telemetry(baseline=session.bundle.manifest.baseline)
        loop = session.loop(batch=slots, telemetry=telemetry)
        with Service(Scheduler(loop, options)) as service:
            served = serve_session(
                session, service, settings, telemetry=telemetry, started=int(time.time())
            )
            yield OpenServer(served=served, server=Server(served), listener=listener)
