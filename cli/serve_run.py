"""Runs the server of ``selfdraft serve``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from selfdraft.cli.console import bytes_text, note
from selfdraft.errors import ConfigError

if TYPE_CHECKING:
    from selfdraft.cli.serving.opened import OpenServer
    from selfdraft.cli.serving.settings import ServerSettings
    from selfdraft.cli.session import EngineOptions
    from selfdraft.runtime.serving.options import ServingOptions

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
) -> None:
    """Serve the bundle at ``bundle`` until a signal."""
    from selfdraft.cli.serving.opened import open_server
    from selfdraft.cli.session import open_session

    session = open_session(bundle, engine)
    with open_server(session, settings, options, slots=slots) as opened:
        _greet(opened, settings)
        opened.run()
    note("stopped")


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
