"""The head takes hidden states that the host kept as it takes those of the pass before."""

from __future__ import annotations

from typing import Any

import numpy as np

from selfdraft.runtime.slots import StepArrays

TOKENS = (5, 9, 2, 7, 11, 3)


def _pass(backend: Any, *, kept: bool) -> tuple[Any, Any]:
    states = backend.allocate(batch=1, capacity=128)
    arrays = StepArrays(1, num_rows=len(TOKENS) - 1, num_logit_rows=1)
    arrays.input_ids[0] = TOKENS[:-1]
    arrays.ask_last_rows([len(TOKENS) - 1])
    step = arrays.fill(past_len=[0], row_count=[len(TOKENS) - 1], attend_all=[0])
    hidden = backend.run_backbone(states, step, arrays.input_ids).hidden
    if kept:
        hidden = np.array(backend.to_host(hidden))
    arrays.input_ids[0] = TOKENS[1:]
    output = backend.run_mtp(states, step, arrays.input_ids, hidden)
    return np.array(backend.to_host(output.draft_ids)), np.array(backend.to_host(output.hidden))


def test_host_rows_give_the_same_drafts_bit_for_bit(demo: Any) -> None:
    direct, kept = _pass(demo.backend, kept=False), _pass(demo.backend, kept=True)
    for ours, theirs in zip(kept, direct, strict=True):
        np.testing.assert_array_equal(ours, theirs)
