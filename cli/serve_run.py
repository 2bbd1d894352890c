"""Runs the server of ``selfdraft serve``."""

from __future__ import annotations

import gc
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfdraft.cli.console import bytes_text, note, print_json_line
from selfdraft.errors import ConfigError

if TYPE_CHECKING:
    from selfdraft.cli.serving.opened import OpenServer
    from selfdraft.cli.serving.settings import ServerSettings
    from selfdraft.cli.session import EngineOptions
    from selfdraft.runtime.serving.options import ServingOptions

SCHEMA = "selfdraft.serve/1"
NEEDED = ("starlette", "uvicorn", "prometheus_client")


def require_server() -> None:
    """Raise ``ConfigError`` where a library of the extra ``serve`` is missing."""
    for name in NEEDED:
        if find_spec(name) is None:
            raise ConfigError(
                f"the server needs {name}, which is not installed",
                hint="install it: pip install 'selfdraft[serve]'",
            )


def serve_bundle(
    bundle: Path,
    engine: EngineOptions,
    settings: ServerSettings,
    options: ServingOptions,
    *,
    slots: int,
    as_json: bool,
) -> None:
    """Serve the bundle at ``bundle`` until a signal."""
    from selfdraft.cli.serving.opened import open_server
    from selfdraft.cli.session import open_session

    session = open_session(bundle, engine)
    with open_server(session, settings, options, slots=slots) as opened:
        _greet(opened, settings)
        if as_json:
            print_json_line(_address_record(opened))
            sys.stdout.flush()
        _keep_for_good()
        opened.run()
    note("stopped")


def _keep_for_good() -> None:
    """Take what is there now out of the garbage collector's sight.

    A full collection waits until a quarter as many objects have come, and connections that ended are
    circles that wait for it: all modules need not be looked through for that, nor count there.
    """
    gc.collect()
    gc.freeze()


def _address_record(opened: OpenServer) -> dict[str, Any]:
    """Where it listens, for programs that start it."""
    now = opened.served.service.snapshot()
    return {
        "schema": SCHEMA,
        "url": opened.url,
        "pid": os.getpid(),
        "model": opened.served.model,
        "backend": opened.served.session.backend.name,
        "threads": opened.served.session.threads,
        "slots": now.slots,
        "context_length": now.context_length,
        "state_bytes": now.state_bytes,
    }


def _greet(opened: OpenServer, settings: ServerSettings) -> None:
    now = opened.served.service.snapshot()
    note(f"{opened.served.model} at {opened.url}/v1")
    note(
        f"{now.slots} slots of {now.context_length} tokens, {bytes_text(now.state_bytes)} of caches"
    )
    if not settings.is_local and settings.api_key is None:
        note(
            f"anybody who reaches {settings.host} can use it: "
            "set SELFDRAFT_API_KEY, or leave --host out"
        )
