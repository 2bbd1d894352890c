"""Drawing the token of one row from its sorted candidates, exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import ConfigError, DeviceError
from selfdraft.runtime.candidates import top_candidates
from selfdraft.runtime.inverse_transform import draw_rank
from selfdraft.runtime.processors import Kind, Processor, ProcessorChain
from selfdraft.runtime.row_view import candidate_view, full_view
from selfdraft.runtime.sampling import SamplingLaw, ranking
from selfdraft.runtime.uniform import PositionUniform

Row = NDArray[np.floating[Any]]
Ids = NDArray[np.int64]

_WIDER = 16
"""Times as many candidates to try before sorting the full row, which costs ten times as much."""


class LogitRow(Protocol):
    """The logits behind the candidates of one row, brought to the host where they are needed."""

    def full(self) -> Row:
        """All of them, ``[V]``."""
        ...

    def entries(self, ids: Ids) -> Row:
        """Those of single tokens."""
        ...


class RowSampler:
    """Draws the tokens of one sequence.

    ``chain`` holds the processors. ``fallbacks`` counts the rows whose candidates did not decide,
    so that the full row was fetched; the token is the one of the full row either way.
    """

    def __init__(
        self, law: SamplingLaw, *, vocab_size: int, chain: ProcessorChain | None = None
    ) -> None:
        self.law = law
        self.fallbacks = 0
        self._vocab_size = vocab_size
        # Most requests have no processor: those must not pay for an empty chain.
        self._chain = chain or None
        self._uniform = PositionUniform(law.seed)

    def draw(self, values: Row, ids: Ids, *, position: int, row: LogitRow) -> int:
        """Token for absolute ``position`` from candidates ``values, ids [C]`` of ``row``.

        The token counts as part of the reply: processors move on. Raises ``DeviceError`` for
        logits that are no numbers, and ``ConfigError`` where no token is allowed.
        """
        if not math.isfinite(values.item(0)):
            raise DeviceError(
                f"the logits at position {position} start with {values[0]}",
                hint="check the bundle with: selfdraft verify BUNDLE",
            )
        if self._chain is None:
            return self._draw_plain(values, ids, position, row)
        active = self._chain.active()
        if active:
            token = self._draw_processed(active, values, ids, position, row)
        else:
            token = self._draw_plain(values, ids, position, row)
        self._chain.advance(token)
        return token

    def plan(self, drafts: Sequence[int], depth: int) -> tuple[list[int], int]:
        """``ProcessorChain.plan``: drafts, and behind them tokens that are known to follow."""
        if self._chain is None:
            return list(drafts), len(drafts)
        return self._chain.plan(drafts, depth)

    def processor(self, kind: type[Kind]) -> Kind | None:
        """The processor of this kind, as it stands now."""
        return self._chain.find(kind) if self._chain else None

    def _draw_plain(self, values: Row, ids: Ids, position: int, row: LogitRow) -> int:
        if self.law.greedy:
            return int(ids.item(0))
        rank = self._draw_rank(values, position)
        if rank is not None:
            return int(ids[rank])
        self.fallbacks += 1
        return self._draw_from_row(row.full().astype(np.float64), values, ids, position)

    def _draw_processed(
        self, active: list[Processor], values: Row, ids: Ids, position: int, row: LogitRow
    ) -> int:
        wanted = [token for processor in active for token in processor.wanted_ids]
        view = candidate_view(values, ids, wanted, vocab_size=self._vocab_size, entries=row.entries)
        for processor in active:
            processor.process(view)
        ranked = view.ranked()
        if len(ranked.ids):
            _check_possible(ranked.values[0])
            if self.law.greedy:
                return int(ranked.ids[0])
            rank = self._draw_rank(
                ranked.values, position, bound=ranked.bound, vocab_size=ranked.vocab_size
            )
            if rank is not None:
                return int(ranked.ids[rank])
        self.fallbacks += 1
        whole = full_view(row.full())
        for processor in active:
            processor.process(whole)
        _check_possible(whole.values.max())
        leading, leading_ids = top_candidates(whole.values, len(values))
        return self._draw_from_row(whole.values, leading, leading_ids, position)

    def _draw_rank(
        self,
        values: Row,
        position: int,
        *,
        normaliser: float | None = None,
        bound: float | None = None,
        vocab_size: int | None = None,
    ) -> int | None:
        return draw_rank(
            values,
            self.law,
            self._uniform.at(position),
            vocab_size=self._vocab_size if vocab_size is None else vocab_size,
            normaliser=normaliser,
            bound=bound,
        )

    def _draw_from_row(self, row: NDArray[np.float64], values: Row, ids: Ids, position: int) -> int:
        if self.law.greedy:
            return int(ids[0])
        normaliser = float(np.exp((row - float(values[0])) / self.law.temperature).sum())
        rank = self._draw_rank(values, position, normaliser=normaliser)
        if rank is None and _WIDER * len(values) < len(row):
            values, ids = top_candidates(row, _WIDER * len(values))
            rank = self._draw_rank(values, position, normaliser=normaliser)
        if rank is None:
            ids = ranking(row)
            rank = self._draw_rank(row[ids], position)
        assert rank is not None, "the full row decides"
        return int(ids[rank])


def _check_possible(largest: float) -> None:
    if not largest > -np.inf:
        raise ConfigError(
            "every token is banned at this position",
            hint="lower min_tokens, or ban fewer tokens, or allow more",
        )
