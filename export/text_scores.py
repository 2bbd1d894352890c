"""Perplexity and acceptance of a model on a text, before and after it is quantised."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfdraft.errors import ConfigError
from selfdraft.export.layerwise import (
    Hidden,
    OnInput,
    OnLayer,
    best_tokens,
    run_backbone,
    run_mtp,
)
from selfdraft.export.weight_plan import DRAFT_HEAD, LM_HEAD
from selfdraft.export.weight_reader import EmbeddingReader, WeightReader
from selfdraft.manifest import ModelSpec, Tap
from selfdraft.measured import Scores

SEQUENCE = 256
"""Tokens that are run as one sequence."""
MAX_TOKENS = 4096
LEAST_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Tokens of a calibration text in sequences ``[B, T]``."""

    name: str
    sha256: str
    ids: NDArray[np.int64]

    @property
    def tokens(self) -> int:
        """Tokens in all."""
        return self.ids.size


def read_text(path: Path, tokenizer: Any) -> Text:
    """The first ``MAX_TOKENS`` tokens of a UTF-8 text.

    Raises ``ConfigError`` for a text that cannot be read or is too short.
    """
    try:
        content = path.read_bytes()
        ids = tokenizer.encode(content.decode(), add_special_tokens=False).ids
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read as UTF-8 text: {error}", hint="give a plain text file"
        ) from None
    length = min(SEQUENCE, len(ids))
    count = min(len(ids), MAX_TOKENS) // max(length, 1)
    if length < LEAST_TOKENS:
        raise ConfigError(
            f"{path} has {len(ids)} tokens, a measurement needs {LEAST_TOKENS} or more",
            hint="give a text of some pages, like what the model will be used for",
        )
    sequences = np.array(ids[: count * length], dtype=np.int64).reshape(count, length)
    return Text(name=path.name, sha256=hashlib.sha256(content).hexdigest(), ids=sequences)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """What a pass of the backbone over a text gave."""

    hidden: Hidden
    perplexity: float
    choices: Tensor
    """Greedy next token of every row ``[B, T]``."""


def pass_backbone(
    spec: ModelSpec,
    reader: WeightReader,
    embedding: EmbeddingReader,
    text: Text,
    *,
    on_input: OnInput | None = None,
    on_layer: OnLayer | None = None,
) -> Passed:
    """Run the backbone over ``text`` and score its next tokens."""
    hidden = run_backbone(spec, reader, embedding, text.ids, on_input=on_input, on_layer=on_layer)
    rows = hidden.post_norm.flatten(0, 1)  # [B T, H]
    if on_input is not None:
        on_input(LM_HEAD, rows)
    # The last row of a sequence has no next token here: any will do, it is not counted.
    targets = torch.from_numpy(np.roll(text.ids, -1, axis=1)).flatten()
    best = best_tokens(reader, LM_HEAD, rows, targets)
    shape = text.ids.shape
    loss = -best.log_probabilities.reshape(shape)[:, :-1].double().mean()
    return Passed(
        hidden=hidden,
        perplexity=math.exp(min(float(loss), 700.0)),
        choices=best.choices.reshape(shape),
    )


def acceptance(
    spec: ModelSpec,
    reader: WeightReader,
    embedding: EmbeddingReader,
    text: Text,
    passed: Passed,
    *,
    tap: Tap,
    on_input: OnInput | None = None,
) -> float:
    """Share of rows whose first draft is the token that the backbone chooses there.

    Row p drafts for position p + 2 from the text up to p + 1; the backbone's choice for the same
    position is that of its row p + 1.
    """
    drafts = first_drafts(spec, reader, embedding, text, passed, tap=tap, on_input=on_input)
    agreed = drafts == passed.choices[:, 1:]
    return float(agreed.double().mean())


def first_drafts(
    spec: ModelSpec,
    reader: WeightReader,
    embedding: EmbeddingReader,
    text: Text,
    passed: Passed,
    *,
    tap: Tap,
    on_input: OnInput | None = None,
) -> Tensor:
    """The first draft of every row ``[B, T - 1]``."""
    assert spec.mtp is not None
    out = run_mtp(spec, reader, embedding, text.ids, passed.hidden.tap(tap), on_input=on_input)
    return drafted_tokens(spec, reader, out)


def drafted_tokens(spec: ModelSpec, reader: WeightReader, out: Tensor) -> Tensor:
    """Tokens ``[B, n]`` that the head's normed rows ``out [B, n, H]`` draft."""
    assert spec.mtp is not None
    rows = out.flatten(0, 1)
    if spec.mtp.draft_vocab_size is None:
        drafts = best_tokens(reader, LM_HEAD, rows).choices
    else:
        ids = torch.from_numpy(reader.draft_ids())
        drafts = ids[best_tokens(reader, DRAFT_HEAD, rows).choices]
    return drafts.reshape(out.shape[:2])


def score(spec: ModelSpec, reader: WeightReader, embedding: EmbeddingReader, text: Text) -> Scores:
    """Perplexity, and acceptance at the manifest's tap where there is a head."""
    passed = pass_backbone(spec, reader, embedding, text)
    accepted = None
    if spec.mtp is not None:
        accepted = acceptance(spec, reader, embedding, text, passed, tap=spec.mtp.tap)
    return Scores(perplexity=passed.perplexity, acceptance=accepted)
