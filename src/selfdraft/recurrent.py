"""What everything that runs a hybrid model must know of its recurrent states (docs/gated_delta.md)."""

from __future__ import annotations

from dataclasses import dataclass

DELTA_BLOCK = 8
"""Tokens of a block: the state lies at a multiple of it, the rows behind it in the log."""
LOG_ROWS = 2 * DELTA_BLOCK
"""Rows that the log holds."""
MAX_ROLLBACK_ROWS = DELTA_BLOCK + 1
"""A step of so many rows can be taken back whole; the last ones of a longer step, as many less one."""
STATE_LEN = "backbone.state_len"
"""Name of the graph's state ``[B, 1]`` int64: tokens inside the recurrent states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSpec:
    """Gated delta net layers of a hybrid model (docs/gated_delta.md)."""

    layers: tuple[int, ...]
    """Backbone layers of this kind, ascending; the others attend."""
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    """Inputs that the causal convolution of a channel sees."""


def state_length(past_len: int, row_count: int) -> int:
    """Tokens inside the recurrent state after a step; lengths from there on can be gone back to.

    It is ``past_len`` rounded down to a block, as far as the log then holds every row of the step.
    """
    needed = -(-(past_len + row_count) // DELTA_BLOCK) * DELTA_BLOCK - LOG_ROWS
    return max(past_len // DELTA_BLOCK * DELTA_BLOCK, needed)
