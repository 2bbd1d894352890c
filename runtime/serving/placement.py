"""Which slot takes in a request: the one whose cache, or a copy of another one's, spares most."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request

WORTH_TOKENS = 32
"""Spared tokens that a copy, or slots further apart, are worth: a pass costs by the slots it spans."""


class Placement(NamedTuple):
    """A free slot, and the slot whose prefix it gets a copy of, if any."""

    slot: int
    copied_from: int | None
    length: int
    """Tokens that the two share."""


def place(
    loop: DecodeLoop, request: Request, *, busy: Collection[int], last_use: Sequence[float]
) -> Placement:
    """The best slot for ``request`` among those that are not ``busy``; there must be one.

    Prefixes count in steps of ``WORTH_TOKENS``; then the slots at work should lie close together, and
    the cache that was used longest ago (``last_use`` by slot) gives way.
    """
    tokens, num_prompt = (
        (*request.prompt_ids, *request.resumed_token_ids),
        len(request.prompt_ids),
    )
    shared = [loop.shared_tokens(slot, tokens, num_prompt=num_prompt) for slot in range(loop.batch)]
    free = [slot for slot in range(loop.batch) if slot not in busy]
    best = min(
        free,
        key=lambda slot: (-(shared[slot] // WORTH_TOKENS), _width(slot, busy), last_use[slot]),
    )
    source = max(range(loop.batch), key=shared.__getitem__)
    if shared[source] < shared[best] + WORTH_TOKENS:
        return Placement(best, None, shared[best])
    target = min(free, key=lambda slot: (_width(slot, busy), last_use[slot]))
    return Placement(target, source, shared[source])


def _width(slot: int, busy: Collection[int]) -> int:
    """Slots that passes would span."""
    return max(slot, *busy, slot) - min(slot, *busy, slot) + 1
