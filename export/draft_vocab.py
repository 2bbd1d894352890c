"""Which tokens the MTP head may draft: a smaller head costs less and keeps the output exact.

A token outside the draft vocabulary is merely never drafted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import ConfigError

if TYPE_CHECKING:
    from selfdraft.export.families import ModelPlan
    from selfdraft.export.options import ExportOptions
    from selfdraft.export.text_files import TextFiles

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


def planned_draft_ids(
    model: ModelPlan, text: TextFiles, options: ExportOptions
) -> NDArray[np.int64] | None:
    """Tokens of the draft head that an export asks for; None: the LM head drafts.

    Raises ``ConfigError`` for a draft vocabulary without an MTP head.
    """
    own = options.engine.draft_vocab
    if options.draft_vocab is None:
        if own is None or model.spec.mtp is None:
            return None
        if own >= model.spec.vocab_size:
            return np.arange(model.spec.vocab_size, dtype=np.int64)
    if model.spec.mtp is None:
        raise ConfigError(
            f"draft_vocab {options.draft_vocab} is given, but the checkpoint has no MTP head",
            hint="leave --draft-vocab out",
        )
    size = options.draft_vocab or own
    assert size is not None
    return choose_draft_ids(
        size,
        vocab_size=model.spec.vocab_size,
        always=text.special_ids,
        tokenizer=text.tokenizer,
        text=options.draft_vocab_text,
    )
