"""The text of an audit or an evaluation, as tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from selfdraft.cli.text_files import read_utf8
from selfdraft.errors import ConfigError, ResourceError

if TYPE_CHECKING:
    from selfdraft.cli.session import Session


def text_ids(session: Session, file: Path, *, context: int | None) -> list[int]:
    """Tokens of ``file``: all of them, or ``context``, the text repeated where it is shorter.

    Raises ``ConfigError`` for no text, ``ResourceError`` when the bundle has no room for it.
    """
    text = read_utf8(file, hint="give a UTF-8 text")
    ids = session.tokenizer.encode(text, add_special_tokens=True)
    if len(ids) < 2:
        raise ConfigError(f"{file} has {len(ids)} tokens", hint="give a text of some length")
    limit = session.bundle.manifest.limits.context_length
    length = context or len(ids)
    if length > limit:
        raise ResourceError(
            f"{length} tokens do not fit the context of {limit}",
            hint=f"give --context {limit} or less, or export with a larger --context",
        )
    return (ids * -(-length // len(ids)))[:length]
