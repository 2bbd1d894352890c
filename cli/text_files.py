"""Text files that a user names."""

from __future__ import annotations

from pathlib import Path

from selfdraft.errors import ConfigError


def read_utf8(file: Path, *, hint: str) -> str:
    """The text of ``file``. Raises ``ConfigError`` with ``hint`` where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 at byte {error.start}", hint=hint) from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", hint=hint) from None
