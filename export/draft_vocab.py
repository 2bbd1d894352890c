"""Which tokens the MTP head may draft: a smaller head costs less and keeps the output exact.

A token outside the draft vocabulary is merely never drafted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import ConfigError

BATCH_LINES = 2_000


def choose_draft_ids(
    size: int,
    *,
    vocab_size: int,
    always: Iterable[int],
    tokenizer: Any,
    text: Path | None,
) -> NDArray[np.int64]:
    """``size`` token ids in ascending order, int64 ``[size]``.

    ``always`` (end and special tokens) comes first, then the most frequent tokens of ``text``,
    equal counts and the rest by lowest id; without a text the lowest ids. ``tokenizer`` is a
    ``tokenizers.Tokenizer``. Raises ``ConfigError`` for a size or a text that cannot serve.
    """
    kept = np.unique(np.fromiter(always, dtype=np.int64))
    if not len(kept) < size < vocab_size:
        raise ConfigError(
            f"draft vocabulary {size} does not fit: {len(kept)} special tokens are always kept, "
            f"and the model has {vocab_size} tokens",
            hint=f"choose {len(kept) + 1} to {vocab_size - 1}, or leave it out to draft from all",
        )
    counts = np.zeros(vocab_size, dtype=np.int64)
    if text is not None:
        _count_tokens(counts, tokenizer, text)
    counts[kept] = np.iinfo(np.int64).max
    order = np.argsort(-counts, kind="stable")  # equal counts stay in id order
    return np.sort(order[:size]).astype(np.int64)


def _count_tokens(counts: NDArray[np.int64], tokenizer: Any, text: Path) -> None:
    """Add the tokens of a UTF-8 text, read in batches of lines."""
    for lines in _batches(text):
        for encoding in tokenizer.encode_batch(lines, add_special_tokens=False):
            np.add.at(counts, encoding.ids, 1)
    if not counts.any():
        raise ConfigError(f"{text} holds no tokens", hint="give a text like the model's replies")


def _batches(text: Path) -> Iterator[list[str]]:
    try:
        with text.open(encoding="utf-8", newline="") as file:
            while lines := list(islice(file, BATCH_LINES)):
                yield lines
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{text} cannot be read as UTF-8 text: {error}",
            hint="give a plain text file for the draft vocabulary",
        ) from None
