"""A real server on a loopback port, in a thread of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
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
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        now = opened.served.service.snapshot()
        if now.running == now.waiting == 0:
            return now
        time.sleep(0.01)
    raise AssertionError(f"{now.running} requests still run, {now.waiting} wait")
