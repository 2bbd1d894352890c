"""A backend that computes nothing and moves a clock by what its passes would cost.

Logits are constant; with ``ForcedAcceptance`` a coin by position decides on drafts, so that every number
of drafts meets the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.runtime.backend import BackboneOutput, MtpOutput, Step
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request

Rates = Callable[[int], Sequence[float]]
PROMPT = (0, 1, 2)


class Clock:
    """Seconds that pass only when someone says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds of one pass by rows of a slot: a fixed part, and one for each row behind the first."""

    target: float = 1.0
    target_row: float = 0.03
    head: float = 0.2
    head_row: float = 0.005

    def step(self, drafts: int) -> float:
        """A step with so many drafts."""
        target = self.target + drafts * self.target_row
        if not drafts:
            return target
        return target + drafts * self.head + drafts * self.head_row


ORIN = Costs()
"""Weights are read once whatever the rows."""
CPU = Costs(target_row=0.02, head=0.3, head_row=0.01)
"""fp32 on a processor with a full draft head."""
DEAR = Costs(target_row=0.5, head=0.3, head_row=0.02)
"""Every row is arithmetic: drafts hardly pay."""


@dataclass(frozen=True, kw_only=True)
class _States:
    batch: int
    capacity: int
    num_bytes: int = 0


class ClockedBackend:
    """``clock`` moves with every pass, by ``costs``."""

    name = "clocked"

    def __init__(
        self, tiny: ModuleType, clock: Clock, costs: Costs, *, context_length: int = 8192
    ) -> None:
        self.clock, self.costs = clock, costs
        self.manifest = tiny.manifest(
            tiny.model_spec(vocab_size=4), candidates=2, context_length=context_length
        )

    def allocate(self, *, batch: int, capacity: int) -> _States:
        return _States(batch=batch, capacity=capacity)

    def run_backbone(
        self, states: _States, step: Step, input_ids: NDArray[np.int64]
    ) -> BackboneOutput:
        batch, rows = input_ids.shape
        self.clock.now += self.costs.target + (rows - 1) * self.costs.target_row
        asked = step.row_index.shape[1]
        return BackboneOutput(
            hidden=np.zeros((batch, rows, 1)),
            logits=np.zeros((batch, asked, 4)),
            top_values=np.tile([1.0, 0.0], (batch, asked, 1)),
            top_ids=np.tile([1, 2], (batch, asked, 1)),
        )

    def run_mtp(self, states: _States, step: Step, input_ids: Any, hidden: Any) -> MtpOutput:
        batch, rows = hidden.shape[:2]
        self.clock.now += self.costs.head + (rows - 1) * self.costs.head_row
        return MtpOutput(
            hidden=np.zeros((batch, 1, 1)),
            draft_ids=np.ones((batch, 1), dtype=np.int64),
            top_values=np.zeros((batch, 1, 1)),
            top_ids=np.ones((batch, 1, 1), dtype=np.int64),
        )

    def read_rows(self, logits: Any, rows: list[tuple[int, int]]) -> NDArray[np.float64]:
        return np.stack([logits[slot, row] for slot, row in rows])

    def read_entries(self, logits: Any, row: tuple[int, int], ids: Any) -> NDArray[np.float64]:
        return np.asarray(logits[row][ids])

    def to_host(self, tensor: Any) -> NDArray[Any]:
        return np.asarray(tensor)

    def export_states(
        self, states: _States, *, slot: int, lengths: Mapping[str, int]
    ) -> dict[str, NDArray[Any]]:
        return {}

    def import_states(
        self,
        states: _States,
        *,
        slot: int,
        lengths: Mapping[str, int],
        arrays: Mapping[str, NDArray[Any]],
    ) -> None:
        pass


class Timeline:
    """When each token of one reply came, on the simulated clock; drafts of each step beside it."""

    def __init__(
        self, tiny: ModuleType, costs: Costs, drafts: Any, rates: Rates, num_tokens: int
    ) -> None:
        """``drafts``: a number, or a function of the clock that makes a policy."""
        clock = Clock()
        backend: Any = ClockedBackend(tiny, clock, costs)
        self.policy = drafts if isinstance(drafts, int) else drafts(clock)
        loop = DecodeLoop(backend, drafts=self.policy, forced_acceptance=rates)
        loop.begin({0: Request(prompt_ids=PROMPT, max_tokens=num_tokens)})
        self.drafts: list[tuple[int, int]] = []
        """Tokens so far, and drafts of the step behind them."""
        counts, times, started = [0], [0.0], clock.now
        while loop.active:
            done = counts[-1] + len(loop.step())
            drafting: Any = loop._drafting
            self.drafts.append((counts[-1], drafting.drafts if drafting else 0))
            counts.append(done)
            times.append(clock.now - started)
        self._counts, self._times = counts, times

    def seconds(self, start: int, end: int) -> float:
        """From the ``start``-th token to the ``end``-th."""
        first, last = np.interp([start, end], self._counts, self._times)
        return float(last - first)

    def share_of(self, drafts: int, start: int, end: int) -> float:
        """Share of the steps between two tokens that had so many drafts."""
        own = [count for place, count in self.drafts if start <= place < end]
        return own.count(drafts) / len(own)
