"""The passes that every rung of the ladder runs: prefill, one row, several rows, and the head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.manifest import capacity_for
from selfdraft.runtime.backend import Backend, IntArray, States, Step

Trace = dict[str, NDArray[Any]]
"""Named tensors that a rung computed."""
NEXT_ROWS = (1, 4)
"""Rows of the passes after the prefill: a plain and a verifying step."""


def trace_passes(
    backend: Backend, prompt: Sequence[int], *, chunk_rows: int | None = None
) -> Trace:
    """Logits and drafts of a prefill over ``prompt`` and of steps behind it.

    Tokens are fixed, so that rungs stay comparable whatever they would choose. Only what a
    prefill in chunks also has is recorded: the last row of the prompt and all rows behind it.
    """
    ids = np.array([[*prompt, *_continuation(prompt, sum(NEXT_ROWS) + 1)]], dtype=np.int64)
    states = backend.allocate(batch=1, capacity=capacity_for(ids.shape[1]))
    trace: Trace = {}
    length, rows_of_chunk = len(prompt), chunk_rows or len(prompt)
    for start in range(0, length, rows_of_chunk):
        rows = min(rows_of_chunk, length - start)
        wanted = [rows - 1]
        _pass(backend, states, ids, start, rows, wanted, trace, "prefill")
    start = length
    for rows in NEXT_ROWS:
        _pass(backend, states, ids, start, rows, list(range(rows)), trace, f"{rows} rows")
        start += rows
    return trace


def _pass(
    backend: Backend,
    states: States,
    ids: IntArray,
    start: int,
    rows: int,
    wanted: list[int],
    trace: Trace,
    label: str,
) -> None:
    """One backbone pass and, with a head, the MTP pass over the same rows."""
    step = Step(
        past_len=np.array([start]),
        row_count=np.array([rows]),
        attend_all=np.array([1]),
        row_index=np.array([wanted]),
    )
    out = backend.run_backbone(states, step, ids[:, start : start + rows])
    pairs = [(0, index) for index in range(len(wanted))]
    trace[f"{label}: logits"] = np.array(backend.read_rows(out.logits, pairs))
    if not backend.manifest.has_mtp:
        return
    drafts = backend.run_mtp(states, step, ids[:, start + 1 : start + rows + 1], out.hidden)
    trace[f"{label}: mtp hidden"] = np.array(backend.to_host(drafts.hidden))
    trace[f"{label}: mtp candidates"] = np.array(drafts.top_values)


def _continuation(prompt: Sequence[int], count: int) -> list[int]:
    """``count`` tokens to run behind the prompt: its own, over again."""
    return [prompt[index % len(prompt)] for index in range(count)]
