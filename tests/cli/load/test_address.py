"""Traffic of a load test goes to this machine only."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from selfdraft.cli.load.address import loopback_address
from selfdraft.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000),
        ("http://127.9.8.7:81/v1", "127.9.8.7", 81),
        ("http://[::1]:8000/", "::1", 8000),
    ],
)
def test_loopback_addresses_are_taken(url: str, host: str, port: int) -> None:
    assert loopback_address(url) == (host, port)


@pytest.mark.parametrize(
    "url",
    [
        "http://192.168.1.4:8000",
        "http://8.8.8.8",
        "http://0.0.0.0:8000",
        "http://[::ffff:8.8.8.8]:80",
        "http://127.0.0.1@8.8.8.8/",
        "https://127.0.0.1:8000",
        "http://127.0.0.1:8000/other",
        "http://127.0.0.1:99999",
        "127.0.0.1:8000",
        "",
    ],
)
def test_everything_else_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="loopback|local server"):
        loopback_address(url)


def test_a_name_that_leads_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(host: str, port: int, **_: Any) -> list[Any]:
        addresses = ["127.0.0.1", "203.0.113.7"]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    with pytest.raises(ConfigError, match="not this machine"):
        loopback_address("http://looks-local.test:8000")
