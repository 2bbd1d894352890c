"""How much of a context a row sees: what the plan of a layer means in tokens."""

from __future__ import annotations

from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.cached_attention.selection import chosen_blocks, selectable_blocks


def seen_tokens(op: CachedAttention, *, length: int) -> int:
    """Tokens that the last row of ``length`` tokens sees at most, itself included."""
    position = length - 1
    selectable = len(selectable_blocks(op, position))
    if op.selector == "all":
        chosen = selectable
    elif op.selector == "window":
        chosen = 0
    else:
        chosen = min(chosen_blocks(op, position), selectable)
    blocks = position // op.block + 1 - selectable + chosen
    seen = min(blocks * op.block, length)
    if op.sliding_window:
        seen = min(seen, op.sinks * op.block + op.sliding_window)
    return seen
