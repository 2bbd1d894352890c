"""Drawing the token of one row from its sorted candidates, exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.errors import ConfigError, DeviceError
from selfdraft.runtime.candidates import top_candidates
from selfdraft.runtime.inverse_transform import draw_rank
from selfdraft.runtime.processors import Processor
from selfdraft.runtime.sampling import SamplingLaw, ranking
from selfdraft.runtime.uniform import PositionUniform

Row = NDArray[np.floating[Any]]

_WIDER = 16
"""Times as many candidates to try before sorting the full row, which costs ten times as much."""


class RowSampler:
    """Draws the tokens of one sequence.

    ``processors`` are cloned. ``fallbacks`` counts the rows whose candidates did not decide, so
    that the full row was fetched; the token is the one of the full row either way.
    """

    def __init__(
        self, law: SamplingLaw, *, vocab_size: int, processors: Sequence[Processor] = ()
    ) -> None:
        self.law = law
        self.fallbacks = 0
        self._vocab_size = vocab_size
        self._processors = [processor.clone() for processor in processors]
        self._uniform = PositionUniform(law.seed)

    def draw(
        self,
        values: Row,
        ids: NDArray[np.int64],
        *,
        position: int,
        fetch_row: Callable[[], Row],
    ) -> int:
        """Token for absolute ``position`` from candidates ``values, ids [C]``.

        ``fetch_row`` gives the row's logits ``[V]``. The token counts as delivered: processors
        move on. Raises ``DeviceError`` for logits that are no numbers.
        """
        token = self._draw(values, ids, position, fetch_row)
        for processor in self._processors:
            processor.advance(token)
        return token

    def _draw(
        self, values: Row, ids: NDArray[np.int64], position: int, fetch_row: Callable[[], Row]
    ) -> int:
        if not math.isfinite(values.item(0)):
            raise DeviceError(
                f"the logits at position {position} start with {values[0]}",
                hint="check the bundle with: selfdraft verify BUNDLE",
            )
        if self._processors and any(processor.active for processor in self._processors):
            self.fallbacks += 1
            row = self._processed(fetch_row())
            values, ids = top_candidates(row, len(values))
            return self._draw_from_row(row, values, ids, position)
        if self.law.greedy:
            return int(ids.item(0))
        rank = self._draw_rank(values, position)
        if rank is not None:
            return int(ids[rank])
        self.fallbacks += 1
        return self._draw_from_row(fetch_row().astype(np.float64), values, ids, position)

    def _draw_rank(self, values: Row, position: int, normaliser: float | None = None) -> int | None:
        return draw_rank(
            values,
            self.law,
            self._uniform.at(position),
            vocab_size=self._vocab_size,
            normaliser=normaliser,
        )

    def _draw_from_row(
        self, row: NDArray[np.float64], values: Row, ids: NDArray[np.int64], position: int
    ) -> int:
        if self.law.greedy:
            return int(ids[0])
        normaliser = float(np.exp((row - float(values[0])) / self.law.temperature).sum())
        rank = self._draw_rank(values, position, normaliser)
        if rank is None and _WIDER * len(values) < len(row):
            values, ids = top_candidates(row, _WIDER * len(values))
            rank = self._draw_rank(values, position, normaliser)
        if rank is None:
            ids = ranking(row)
            rank = self._draw_rank(row[ids], position)
        assert rank is not None, "the full row decides"
        return int(ids[rank])

    def _processed(self, row: Row) -> NDArray[np.float64]:
        changed = row.astype(np.float64)
        for processor in self._processors:
            if processor.active:
                processor.apply(changed)
        if not changed.max() > -np.inf:
            raise ConfigError(
                "every token is banned at this position", hint="lower min_tokens or ban fewer ids"
            )
        return changed
