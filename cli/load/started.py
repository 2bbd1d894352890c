"""A server of our own for a load test: started on a free loopback port, ended with it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from selfdraft.cli.load.address import Address, loopback_address
from selfdraft.errors import ConfigError

STOP_S = 30.0


class StartedServer(NamedTuple):
    """A server process that listens."""

    address: Address
    pid: int
    facts: dict[str, Any]
    """What ``selfdraft serve --json`` told."""


@contextmanager
def started_server(bundle: Path, *options: object) -> Iterator[StartedServer]:
    """``selfdraft serve`` of ``bundle`` with these options, ended with the context.

    Raises ``ConfigError`` with its last words where it does not start.
    """
    command = [sys.executable, "-m", "selfdraft.cli.main", "serve", str(bundle)]
    command += ["--host", "127.0.0.1", "--port", "0", "--drain", "0", "--json"]
    command += [str(option) for option in options]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                process.wait(STOP_S)
                raise _failed(said)
            facts = json.loads(line)
            yield StartedServer(loopback_address(facts["url"]), process.pid, facts)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    finally:
        if process.stdout is not None:
            process.stdout.close()


def _failed(said: IO[bytes]) -> ConfigError:
    said.seek(0)
    lines = said.read().decode(errors="replace").splitlines()
    found = {line.partition(": ")[0]: line.partition(": ")[2] for line in lines}
    return ConfigError(
        f"the server did not start: {found.get('error', ' '.join(lines)[-300:])}",
        hint=found.get("hint", "start it by itself: selfdraft serve BUNDLE"),
    )
