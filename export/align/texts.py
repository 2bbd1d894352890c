"""Training text: sequences of equal length, some of them held out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import ConfigError
from selfdraft.export.text_scores import Text

HELD_OUT_SHARE = 0.1
HELD_OUT_TOKENS = 8192
"""Tokens that are held out at most."""
LEAST_SEQUENCES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingText:
    """Sequences ``[N, T]`` to train on, and a text that is only measured."""

    train: NDArray[np.int64]
    held_out: Text


def read_training_text(
    files: Sequence[Path], tokenizer: Any, *, length: int, tokens: int, seed: int
) -> TrainingText:
    """Sequences of ``length`` from UTF-8 ``files``, at most ``tokens`` in all.

    One in ten is held out, drawn by ``seed``. Raises ``ConfigError`` for a file that cannot be read and
    for too little text.
    """
    sequences: list[NDArray[np.int64]] = []
    digest = hashlib.sha256()
    for file in files:
        content = _read(file)
        digest.update(content)
        ids = tokenizer.encode(content.decode(), add_special_tokens=False).ids
        count = len(ids) // length
        sequences.append(np.array(ids[: count * length], dtype=np.int64).reshape(count, length))
    joined = np.concatenate(sequences)
    if len(joined) < LEAST_SEQUENCES:
        raise ConfigError(
            f"the text has {len(joined)} sequences of {length} tokens, training needs "
            f"{LEAST_SEQUENCES} or more",
            hint="give more text, like what the model will be used for, or a smaller --length",
        )
    order = np.random.default_rng(seed).permutation(len(joined))[: max(tokens // length, 2)]
    most = max(1, HELD_OUT_TOKENS // length)
    held = min(max(1, int(len(order) * HELD_OUT_SHARE)), most)
    name = files[0].name if len(files) == 1 else f"{files[0].name} and {len(files) - 1} more"
    text = Text(name=name, sha256=digest.hexdigest(), ids=joined[order[:held]])
    return TrainingText(train=joined[order[held:]], held_out=text)


def _read(file: Path) -> bytes:
    try:
        content = file.read_bytes()
        content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file} cannot be read as UTF-8 text: {getattr(error, 'strerror', None) or error}",
            hint="give plain text files",
        ) from None
    return content
