"""Processors that weigh tokens by what was said before: repetition, counts, and a fixed bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from selfdraft.runtime.processors import Processor
from selfdraft.runtime.row_view import RowView

LEAST_FACTOR = 2.0**-400
"""A smaller factor would divide beyond fp64, and the law is the same: logits of fp32 that differ at
all are 2**251 apart already."""


class RepetitionPenalty(Processor):
    """Divides positive logits of tokens seen in prompt or reply by ``factor``, multiplies others.

    Keskar et al., "CTRL" (2019), section 4.1, with the sign rule that all toolkits use.
    """

    def __init__(self, factor: float, prompt_ids: Sequence[int], *, vocab_size: int) -> None:
        self._factor = factor
        self._seen: NDArray[np.bool_] = np.zeros(vocab_size, dtype=bool)
        self._seen[list(prompt_ids)] = True

    @property
    def wanted_ids(self) -> Sequence[int]:
        if self._factor >= 1:
            return ()
        seen: list[int] = np.flatnonzero(self._seen).tolist()
        return seen

    def process(self, row: RowView) -> None:
        values, factor = row.values, max(self._factor, LEAST_FACTOR)
        penalised = np.where(values > 0, values / factor, values * factor)
        row.values = np.where(row.take(self._seen), penalised, values)

    def advance(self, token: int) -> None:
        self._seen[token] = True

    def clone(self) -> RepetitionPenalty:
        twin = RepetitionPenalty(self._factor, (), vocab_size=len(self._seen))
        twin._seen[:] = self._seen
        return twin


class CountPenalty(Processor):
    """Lowers each token by ``frequency`` times its count in the reply, and once by ``presence``."""

    def __init__(self, *, frequency: float, presence: float, vocab_size: int) -> None:
        self._frequency, self._presence = frequency, presence
        self._counts: NDArray[np.int64] = np.zeros(vocab_size, dtype=np.int64)
        self._any = False

    @property
    def active(self) -> bool:
        return self._any

    @property
    def wanted_ids(self) -> Sequence[int]:
        if self._frequency >= 0 and self._presence >= 0:
            return ()
        said: list[int] = np.flatnonzero(self._counts).tolist()
        return said

    def process(self, row: RowView) -> None:
        counts = row.take(self._counts)
        row.values = row.values - (self._frequency * counts + self._presence * (counts > 0))

    def advance(self, token: int) -> None:
        self._counts[token] += 1
        self._any = True

    def clone(self) -> CountPenalty:
        twin = CountPenalty(
            frequency=self._frequency, presence=self._presence, vocab_size=len(self._counts)
        )
        twin._counts[:] = self._counts
        twin._any = self._any
        return twin


class LogitBias(Processor):
    """Adds a constant to the logits of some tokens."""

    def __init__(self, bias: Mapping[int, float], *, vocab_size: int) -> None:
        self._bias: NDArray[np.float64] = np.zeros(vocab_size)
        self._bias[list(bias)] = list(bias.values())
        self._raised = [token for token, shift in bias.items() if shift > 0]

    @property
    def wanted_ids(self) -> Sequence[int]:
        return self._raised

    def process(self, row: RowView) -> None:
        row.values = row.values + row.take(self._bias)

    def clone(self) -> LogitBias:
        return self  # it has no state
