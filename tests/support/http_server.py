"""A real server on a loopback port, in a thread of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selfdraft.cli.serving.opened import OpenServer, open_server
from selfdraft.cli.serving.settings import ServerSettings
from selfdraft.cli.session import EngineOptions, open_session
from selfdraft.runtime.serving.options import ServingOptions
from selfdraft.runtime.serving.snapshot import ServiceSnapshot

WAIT_S = 30.0


@contextmanager
def serving(
    bundle: Path,
    *,
    slots: int = 2,
    options: ServingOptions | None = None,
    drafts: int = 1,
    **settings: Any,
) -> Iterator[OpenServer]:
    """Serve ``bundle`` by the reference backend; ``settings`` of ``ServerSettings``."""
    session = open_session(bundle, EngineOptions(backend="reference", drafts=drafts))
    chosen = ServerSettings(**({"port": 0, "drain_s": 0.0} | settings))
    with open_server(session, chosen, options or ServingOptions(), slots=slots) as opened:
        thread = threading.Thread(target=opened.run, name="server")
        thread.start()
        try:
            yield opened
        finally:
            opened.stop()
            thread.join(WAIT_S)
            assert not thread.is_alive()


def wait_for_idle(opened: OpenServer) -> ServiceSnapshot:
    """The service once no request is left in it; fails where one stays."""
    return _wait(opened, lambda now: now.running == now.waiting == 0)


def wait_for_running(opened: OpenServer) -> ServiceSnapshot:
    """The service once a request runs in it; fails where none comes."""
    return _wait(opened, lambda now: now.running > now.prefilling)


def _wait(opened: OpenServer, wanted: Callable[[ServiceSnapshot], bool]) -> ServiceSnapshot:
    deadline = time.monotonic() + WAIT_S
    while not wanted(now := opened.served.service.snapshot()):
        assert time.monotonic() < deadline, f"{now.running} requests run, {now.waiting} wait"
        time.sleep(0.01)
    return now
