"""What the server is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass

from selfdraft.errors import ConfigError

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
LAST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Address and limits. Raises ``ConfigError`` for what cannot be."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0: any free one."""
    api_key: str | None = None
    """What clients have to send as bearer token; None: nothing."""
    model_name: str | None = None
    """Name of the model in the API; None: the bundle's own."""
    max_body_bytes: int = 4 * 2**20
    max_tokens: int | None = None
    """Tokens of a reply at most, and where a request does not say; None: what the context holds."""
    max_connections: int = 512
    body_timeout_s: float = 30.0
    """For a body to arrive."""
    drain_s: float = 30.0
    """At a shutdown replies may go on for so long."""

    def __post_init__(self) -> None:
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.strip()):
            raise ConfigError(
                "the API key is empty, or not ASCII", hint="give letters and digits, or no key"
            )
        if not 0 <= self.port <= LAST_PORT:
            raise ConfigError(
                f"there is no port {self.port}", hint=f"choose 0 to {LAST_PORT}; 0 takes a free one"
            )
        name = self.model_name
        if name is not None and not (name.strip() and name.isprintable()):
            raise ConfigError(
                f"the model's name {name!r} cannot be shown", hint="give a text, or leave it out"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in LOOPBACK_NAMES
