"""Whether an engine computes one row with the same bits as several rows.

Matrix products have kernels of their own for one row; those for int4 weights round otherwise than
the kernels for several rows on some processors. Behind int8 arithmetic that can change a sampled
token, so plain decoding is then padded to two rows where speculation must change nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from selfdraft.runtime.backend import Backend, Step

PROBE_ROWS = 2
PROBE_CAPACITY = 128


def one_row_rounds_like_two(backend: Backend) -> bool:
    """Whether the logits of a first token have the same bits alone and beside a second token.

    Two passes over an empty cache. Steps of two rows or more are taken to round alike.
    """
    alone, together = (_first_logits(backend, rows) for rows in (1, PROBE_ROWS))
    return bool(np.array_equal(alone, together))


def _first_logits(backend: Backend, rows: int) -> NDArray[np.floating]:
    """Logits ``[1, 1, V]`` of token 1 in a step of ``rows`` tokens."""
    states = backend.allocate(batch=1, capacity=PROBE_CAPACITY)
    step = Step(
        past_len=np.zeros(1, np.int64),
        row_count=np.array([rows], np.int64),
        attend_all=np.ones(1, np.int64),
        row_index=np.zeros((1, 1), np.int64),
    )
    output = backend.run_backbone(states, step, np.arange(1, rows + 1, dtype=np.int64)[None])
    return np.array(backend.to_host(output.logits))
