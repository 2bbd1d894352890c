"""Where a load test may send traffic: to loopback addresses, and nowhere else."""

from __future__ import annotations

import ipaddress
import socket
from typing import NamedTuple
from urllib.parse import urlsplit

from selfdraft.errors import ConfigError

HINT = "start the server on this machine and give its loopback address: --url http://127.0.0.1:8000"


class Address(NamedTuple):
    """A loopback address, resolved once."""

    host: str
    port: int


def loopback_address(url: str) -> Address:
    """The address that ``url`` names. Raises ``ConfigError`` unless it leads to this machine."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        host, port, parts = None, 80, urlsplit("")
    if parts.scheme != "http" or not host or parts.path.rstrip("/") not in ("", "/v1"):
        raise ConfigError(f"{url!r} is no address of a local server", hint=HINT)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"{host!r} cannot be found: {error}", hint=HINT) from None
    addresses = [str(entry[4][0]) for entry in found]
    # All of them: which one a connection takes is not ours to say. It is made to the first.
    if not all(ipaddress.ip_address(one).is_loopback for one in addresses):
        raise ConfigError(
            f"{host} is not this machine ({addresses[0]}): a load test stays on loopback", hint=HINT
        )
    return Address(addresses[0], port)
