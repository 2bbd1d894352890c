"""A text through both graphs of an open bundle, as they are deployed: who agrees with whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.cli.probe_shares import Agreed
from selfdraft.manifest import capacity_for
from selfdraft.runtime.backend import Backend, Step
from selfdraft.runtime.loop_options import MAX_DRAFTS
from selfdraft.runtime.prefill import SPARSE_CHUNK_ROWS, chunk_rows_at

if TYPE_CHECKING:
    from selfdraft.cli.session import Session

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """First drafts and the model's own choices for the same positions, ``[N, T - 1]``."""

    drafts: Ids
    choices: Ids
    counted: NDArray[np.bool_] | None = None
    """Rows that count; None: all."""

    @property
    def agreed(self) -> Agreed:
        """Where they are the same token; rows that do not count are masked."""
        same = self.drafts == self.choices
        skipped = np.ma.nomask if self.counted is None else ~self.counted
        return np.ma.MaskedArray(same, mask=skipped)


class TextEngine:
    """Runs sequences one after the other through slot 0; nothing is generated."""

    def __init__(self, session: Session) -> None:
        self._backend: Backend = session.backend
        limits = session.bundle.manifest.limits
        self._most = session.options.chunk or limits.prefill_rows
        if self._backend.name == "tensorrt":  # every row's logits are wanted, an engine gives few
            self._most = min(self._most, MAX_DRAFTS + 1)

    def rows(self, ids: Ids, *, dense: bool) -> Rows:
        """Over sequences ``ids [N, T]``; ``dense`` rows attend to everything, others by selector."""
        found = [self._sequence(sequence, dense=dense) for sequence in ids]
        return Rows(
            drafts=np.stack([drafts[:-1] for drafts, _ in found]),
            choices=np.stack([choices[1:] for _, choices in found]),
        )

    def _sequence(self, ids: Ids, *, dense: bool) -> tuple[Ids, Ids]:
        """Draft and choice of every row ``[T]``; the last row's draft stands for nothing."""
        heads = self._backend.manifest.model.num_heads
        most = self._most if dense else min(self._most, SPARSE_CHUNK_ROWS)
        # Each backend takes its own kind of states, which the protocol cannot say.
        states: Any = self._backend.allocate(batch=1, capacity=capacity_for(len(ids)))
        following = np.append(ids[1:], ids[-1])
        drafts, choices, begin = [], [], 0
        while begin < len(ids):
            rows = chunk_rows_at(begin + most, most=most, batch=1, num_heads=heads)
            part = slice(begin, min(begin + rows, len(ids)))
            count = part.stop - begin
            step = Step(
                past_len=np.array([begin]),
                row_count=np.array([count]),
                attend_all=np.array([int(dense)]),
                row_index=np.arange(count)[None],
            )
            output = self._backend.run_backbone(states, step, ids[None, part])
            choices.append(np.array(output.top_ids[0, :, 0]))
            drafted = self._backend.run_mtp(states, step, following[None, part], output.hidden)
            self._backend.to_host(drafted.draft_ids)  # its candidates are there from now on
            drafts.append(np.array(drafted.top_ids[0, :, 0]))
            begin = part.stop
        return np.concatenate(drafts), np.concatenate(choices)
