"""Generations read back from files that ``generate --json`` and ``chat --json`` wrote."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfdraft.errors import ConfigError
from selfdraft.runtime.thinking_record import ThinkingRecord
from selfdraft.strict import StrictError, record_from_json

STDIN = Path("-")
SCHEMA_NAME = "selfdraft.generation"
_WRITE_HINT = "write the file with: selfdraft generate BUNDLE PROMPT --json >> FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedGeneration:
    """What the statistics need of one record."""

    bundle: str
    text: str
    prompt_token_ids: tuple[int, ...]
    tokens: tuple[int, ...]
    finish_reason: str
    steps: int
    """Decode steps."""
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    thinking: ThinkingRecord | None = None

    @property
    def num_tokens(self) -> int:
        """Delivered tokens."""
        return len(self.tokens)

    @property
    def cut_off(self) -> bool:
        """Whether it ended at a limit or by the reader, not by itself."""
        return self.finish_reason in ("length", "context", "closed")


_FIELDS = tuple(SavedGeneration.__dataclass_fields__)


def read_generations(path: Path) -> list[SavedGeneration]:
    """Every record of a file (``-``: stdin): JSON lines, or indented records one after another.

    Raises ``ConfigError`` that names the file and the record for anything else.
    """
    text = _read(path)
    found = [_generation(path, index, data) for index, data in enumerate(_values(path, text), 1)]
    if not found:
        raise ConfigError(f"{path} holds no generation", hint=_WRITE_HINT)
    return found


def _read(path: Path) -> str:
    try:
        data = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 at byte {error.start}", hint=_WRITE_HINT) from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", hint="name a file of generations"
        ) from None


def _values(path: Path, text: str) -> Iterator[object]:
    decoder, position = json.JSONDecoder(), 0
    while True:
        while position < len(text) and text[position].isspace():
            position += 1
        if position == len(text):
            return
        try:
            value, position = decoder.raw_decode(text, position)
        except (json.JSONDecodeError, RecursionError) as error:
            line = text.count("\n", 0, getattr(error, "pos", position)) + 1
            raise ConfigError(
                f"{path}, line {line}: no JSON ({_reason(error)})", hint=_WRITE_HINT
            ) from None
        yield value


def _reason(error: Exception) -> str:
    return error.msg if isinstance(error, json.JSONDecodeError) else "it nests too deeply"


def _generation(path: Path, index: int, data: object) -> SavedGeneration:
    where = f"{path}, record {index}"
    schema = data.get("schema") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or str(schema).partition("/")[0] != SCHEMA_NAME:
        raise ConfigError(
            f"{where}: its schema is {schema!r}, not {SCHEMA_NAME}/…", hint=_WRITE_HINT
        )
    known: dict[str, Any] = {name: data[name] for name in _FIELDS if name in data}
    try:
        return record_from_json(SavedGeneration, known, where=where)
    except StrictError as error:
        raise ConfigError(str(error), hint=_WRITE_HINT) from None
