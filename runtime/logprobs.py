"""Log-probabilities of delivered tokens, under the model's own distribution.

They belong to the logits as the model gives them: before penalties, bans, temperature and filters
(vLLM's ``raw_logprobs``). So they do not depend on how the token was chosen.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from selfdraft.runtime.candidates import top_candidates

MAX_LOGPROBS = 20


class TokenLogprobs(NamedTuple):
    """The log-probability of one token, and those of the likeliest ones at its position."""

    token: int
    logprob: float
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


def token_logprobs(
    row: NDArray[np.floating[Any]],
    token: int,
    *,
    count: int,
    values: NDArray[np.floating[Any]],
    ids: NDArray[np.int64],
) -> TokenLogprobs:
    """Of ``token`` and the ``count`` likeliest, from the logits ``row [V]``.

    ``values, ids [C]`` are its sorted candidates; more than those are looked up in the row.
    """
    logits = row.astype(np.float64)
    largest = float(values[0])
    total = largest + math.log(float(np.exp(logits - largest).sum()))
    if count > len(values):
        values, ids = top_candidates(logits, count)
    return TokenLogprobs(
        token=token,
        logprob=float(logits[token]) - total,
        top_ids=tuple(ids[:count].tolist()),
        top_logprobs=tuple((values[:count].astype(np.float64) - total).tolist()),
    )
