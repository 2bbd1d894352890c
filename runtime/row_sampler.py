"""Drawing the token of one row from its sorted candidates, exactly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import ConfigError, DeviceError
from selfdraft.runtime.candidates import top_candidates
from selfdraft.runtime.distribution import (
    Distribution,
    distribution_of_ranks,
    distribution_of_row,
)
from selfdraft.runtime.drawn_drafts import DrawnDrafts
from selfdraft.runtime.inverse_transform import draw_rank, share_of_rank
from selfdraft.runtime.processors import Kind, Processor, ProcessorChain
from selfdraft.runtime.row_view import Ranked, candidate_view, full_view
from selfdraft.runtime.sampling import SamplingLaw, ranking
from selfdraft.runtime.uniform import ACCEPT, RESIDUAL, PositionUniform

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
        _check_finite(values, position)
        if self._chain is None:
            return self._draw_plain(values, ids, position, row)
        active = self._chain.active()
        if active:
            token = self._draw_processed(active, values, ids, position, row)
        else:
            token = self._draw_plain(values, ids, position, row)
        self._chain.advance(token)
        return token

    @property
    def free(self) -> bool:
        """Whether no processor has a say."""
        return self._chain is None

    def plan(self, drafts: Sequence[int], depth: int) -> tuple[list[int], int]:
        """``ProcessorChain.plan``: drafts, and behind them tokens that are known to follow."""
        if self._chain is None:
            return list(drafts), len(drafts)
        return self._chain.plan(drafts, depth)

    def processor(self, kind: type[Kind]) -> Kind | None:
        """The processor of this kind, as it stands now."""
        return self._chain.find(kind) if self._chain else None

    def draw_against(
        self,
        values: Row,
        ids: Ids,
        *,
        position: int,
        row: LogitRow,
        draft: int,
        draft_law: Distribution,
    ) -> int:
        """As ``draw``, where ``draft`` was drawn from ``draft_law``: the draft, or another token.

        Rejection sampling after Leviathan et al. (2023), algorithm 1: the draft is accepted with
        probability min(1, p / q), else the token comes from norm(max(p - q, 0)); p is the law with
        everything applied. Both together follow p.
        """
        _check_finite(values, position)
        active = self._chain.active() if self._chain else []
        ranked = self._ranked(active, values, ids, row)
        share = draft_law.of(draft)
        assert share > 0, "a draft that its law cannot give"
        # In (0, 1]: where p is 0 the draft never passes, where p is at least q it always does.
        threshold = (1.0 - self._uniform.at(position, ACCEPT)) * share
        token = draft
        if threshold > self._least_share(ranked, draft):
            law = self._distribution(active, ranked, row, len(values))
            if threshold > law.of(draft):
                token = law.draw_residual(draft_law, self._uniform.at(position, RESIDUAL))
        if self._chain:
            self._chain.advance(token)
        return token

    def drawn_drafts(self, position: int) -> DrawnDrafts:
        """What draws the drafts of one step, the first one for absolute ``position``."""
        return DrawnDrafts(self.law, self._uniform, position=position)

    def _draw_plain(self, values: Row, ids: Ids, position: int, row: LogitRow) -> int:
        if self.law.greedy:
            return int(ids.item(0))
        rank = self._draw_rank(values, position)
        if rank is not None:
            return int(ids[rank])
        self.fallbacks += 1
        return self._draw_from_row(row.full().astype(np.float64), (values, ids), position)

    def _draw_processed(
        self, active: list[Processor], values: Row, ids: Ids, position: int, row: LogitRow
    ) -> int:
        ranked = self._ranked(active, values, ids, row)
        if len(ranked.ids):
            if self.law.greedy:
                return int(ranked.ids[0])
            rank = self._draw_rank(
                ranked.values, position, bound=ranked.bound, vocab_size=ranked.vocab_size
            )
            if rank is not None:
                return int(ranked.ids[rank])
        self.fallbacks += 1
        whole = _processed_row(active, row)
        return self._draw_from_row(whole, top_candidates(whole, len(values)), position)

    def _ranked(self, active: list[Processor], values: Row, ids: Ids, row: LogitRow) -> Ranked:
        """What is certain about the processed row's leading tokens."""
        if not active:
            outside = len(ids) < self._vocab_size
            bound = float(values[-1]) if outside else -math.inf
            return Ranked(values.astype(np.float64), ids, bound, self._vocab_size)
        wanted = [token for processor in active for token in processor.wanted_ids]
        view = candidate_view(values, ids, wanted, vocab_size=self._vocab_size, entries=row.entries)
        for processor in active:
            processor.process(view)
        ranked = view.ranked()
        if len(ranked.ids):
            _check_possible(ranked.values[0])
        return ranked

    def _least_share(self, ranked: Ranked, token: int) -> float:
        """A probability that ``token`` has at least, from the candidates alone."""
        found = np.flatnonzero(ranked.ids == token)
        if not len(found):
            return 0.0
        return share_of_rank(
            ranked.values,
            self.law,
            int(found[0]),
            vocab_size=ranked.vocab_size,
            bound=ranked.bound,
        ).low

    def _distribution(
        self, active: list[Processor], ranked: Ranked, row: LogitRow, num_candidates: int
    ) -> Distribution:
        """The law with everything applied."""
        if len(ranked.ids):
            found = distribution_of_ranks(
                ranked.values,
                ranked.ids,
                self.law,
                vocab_size=ranked.vocab_size,
                bound=ranked.bound,
            )
            if found is not None:
                return found
        self.fallbacks += 1
        whole = _processed_row(active, row)
        found = distribution_of_row(whole, self.law)
        if found is not None:
            return found
        leading = top_candidates(whole, num_candidates)
        for values, ids, normaliser in self._widening(whole, leading):
            found = distribution_of_ranks(
                values, ids, self.law, vocab_size=self._vocab_size, normaliser=normaliser
            )
            if found is not None:
                return found
        raise AssertionError("the full row decides")

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

    def _draw_from_row(
        self, row: NDArray[np.float64], leading: tuple[Row, Ids], position: int
    ) -> int:
        if self.law.greedy:
            return int(leading[1][0])
        for values, ids, normaliser in self._widening(row, leading):
            rank = self._draw_rank(values, position, normaliser=normaliser)
            if rank is not None:
                return int(ids[rank])
        raise AssertionError("the full row decides")

    def _widening(
        self, row: NDArray[np.float64], leading: tuple[Row, Ids]
    ) -> Iterator[tuple[Row, Ids, float | None]]:
        """Candidates of ``row``, ever more, with its normaliser; at last all of them, ranked."""
        values, ids = leading
        normaliser = float(np.exp((row - float(values[0])) / self.law.temperature).sum())
        yield values, ids, normaliser
        if _WIDER * len(values) < len(row):
            yield *top_candidates(row, _WIDER * len(values)), normaliser
        order = ranking(row)
        yield row[order], order, None


def _processed_row(active: list[Processor], row: LogitRow) -> NDArray[np.float64]:
    whole = full_view(row.full())
    for processor in active:
        processor.process(whole)
    _check_possible(whole.values.max())
    return whole.values


def _check_finite(values: Row, position: int) -> None:
    if not math.isfinite(values.item(0)):
        raise DeviceError(
            f"the logits at position {position} start with {values[0]}",
            hint="check the bundle with: selfdraft verify BUNDLE",
        )


def _check_possible(largest: float) -> None:
    if not largest > -np.inf:
        raise ConfigError(
            "every token is banned at this position",
            hint="lower min_tokens, or ban fewer tokens, or allow more",
        )
