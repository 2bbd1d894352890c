"""A text through one slot of a backend: filled in chunks, row by row where it matters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.manifest import capacity_for
from selfdraft.runtime.backend import Backend, FloatArray, Step
from selfdraft.runtime.prefill import SPARSE_CHUNK_ROWS, chunk_rows_at

LayerArrays = dict[str, NDArray[Any]]
OnTokens = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOutput:
    """What one row gave; copies."""

    logits: FloatArray
    """``[V]``."""
    hidden: FloatArray
    """``[H]``, the tap of the MTP head."""
    blocks_read: tuple[int, ...]
    """By sparse layer; empty where all are dense."""


class TextPasses:
    """Runs tokens at the end of what is cached; ``cached`` may be set back at any time.

    ``length``: tokens it must have room for. ``dense`` rows attend to everything, others by the
    selectors of the bundle.
    """

    def __init__(self, backend: Backend, *, length: int, chunk_rows: int) -> None:
        self._backend = backend
        self._chunk_rows = chunk_rows
        # Each backend takes its own kind of states, which the protocol cannot say.
        self._states: Any = backend.allocate(batch=1, capacity=capacity_for(length))
        self.cached = 0

    def fill(self, ids: Sequence[int], *, dense: bool, on_tokens: OnTokens | None = None) -> None:
        """Append ``ids``, a chunk at a time."""
        most = self._chunk_rows if dense else min(self._chunk_rows, SPARSE_CHUNK_ROWS)
        heads = self._backend.manifest.model.num_heads
        begin = 0
        while begin < len(ids):
            rows = chunk_rows_at(self.cached + most, most=most, batch=1, num_heads=heads)
            chunk = ids[begin : begin + rows]
            begin += len(chunk)
            self._run(chunk, dense=dense)
            self.cached += len(chunk)
            if on_tokens:
                on_tokens(len(chunk))

    def row(self, token: int, *, dense: bool) -> RowOutput:
        """Append one token, and what its row gave."""
        output = self._run([token], dense=dense)
        self.cached += 1
        read = output.blocks_read
        return RowOutput(
            logits=np.array(self._backend.read_rows(output.logits, [(0, 0)])[0]),
            hidden=np.array(self._backend.to_host(output.hidden)[0, 0]),
            blocks_read=() if read is None else tuple(read.tolist()),
        )

    def layer_states(self, layer: int) -> LayerArrays:
        """What one backbone layer has cached, by the names of the op; views without a slot axis."""
        lengths = {"backbone": self.cached, "mtp": 0}
        states = self._backend.export_states(self._states, slot=0, lengths=lengths)
        names = {name: name.removeprefix("backbone.").rpartition("_") for name in states}
        return {
            names[name][0]: array
            for name, array in states.items()
            if name.startswith("backbone.") and names[name][2] == str(layer)
        }

    def _run(self, ids: Sequence[int], *, dense: bool) -> Any:
        step = Step(
            past_len=np.array([self.cached]),
            row_count=np.array([len(ids)]),
            attend_all=np.array([int(dense)]),
            row_index=np.array([[len(ids) - 1]]),
        )
        return self._backend.run_backbone(self._states, step, np.array([ids], dtype=np.int64))
