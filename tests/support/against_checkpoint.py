"""A backend's passes against the checkpoint itself, run by an implementation that shares nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.hub_model import HubModel
from support.numerics import assert_close

from selfdraft.runtime.backend import Backend, Step

LENGTH = 40


def step_of(rows: int) -> Step:
    """One slot, all rows real, logits of every row."""
    one = np.ones(1, dtype=np.int64)
    return Step(
        past_len=one * 0,
        row_count=one * rows,
        attend_all=one,
        row_index=np.arange(rows, dtype=np.int64)[None],
    )


def compare(backend: Backend, source: Path, *, relative: float) -> None:
    """Backbone logits, head output and its best values, on ``LENGTH`` random tokens."""
    model = HubModel(source)
    ids = np.random.default_rng(5).integers(0, 288, LENGTH).tolist()
    states = backend.allocate(batch=1, capacity=128)
    step = step_of(LENGTH - 1)
    output = backend.run_backbone(states, step, np.array([ids[:-1]], dtype=np.int64))
    rows = [(0, row) for row in range(LENGTH - 1)]
    expected = model.backbone(ids[:-1])[2]
    assert_close(backend.read_rows(output.logits, rows), expected, relative=relative, name="logits")
    hidden, logits = model.mtp(ids)
    drafted = backend.run_mtp(states, step, np.array([ids[1:]], dtype=np.int64), output.hidden)
    found = np.asarray(backend.to_host(drafted.hidden))[0]
    assert_close(found, hidden, relative=relative, name="hidden")
    best = np.sort(logits, axis=-1)[:, ::-1][:, : drafted.top_values.shape[-1]]
    assert_close(np.asarray(drafted.top_values)[0], best, relative=relative, name="top_values")
    np.testing.assert_array_equal(
        np.asarray(backend.to_host(drafted.draft_ids))[0], logits.argmax(axis=-1)
    )
