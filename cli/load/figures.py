"""What the requests of one load add up to: times at the median and in the tail, and throughput."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from selfdraft.cli.load.client import Answered
from selfdraft.cli.load.traffic import Sent

MOST_ERRORS = 5
PERCENTILES = (50, 95, 99)


def load_figures(rounds: Sequence[Sequence[Sent]]) -> dict[str, Any]:
    """Counts and percentiles over all rounds, medians of their throughput; ``None`` without replies.

    Times count from when a request was due. A gap is the time between two pieces of text of one
    reply: a step that accepts drafts brings several tokens in one piece.
    """
    sent = [one for each in rounds for one in each]
    whole = _whole(sent)
    refused = [one for one in sent if one.is_refused]
    errors = [_error(one) for one in sent if not _is_known(one)]
    speeds = [_per_s(_tokens(each), each) for each in rounds]
    return {
        "ok": len(whole),
        "refused": len(refused),
        "failed": len(errors),
        "errors": list(dict.fromkeys(errors))[:MOST_ERRORS],
        "wall_s": sum(_wall_s(each) for each in rounds),
        "requests_per_s": _median([_per_s(len(_whole(each)), each) for each in rounds]),
        "tok_per_s": _median(speeds),
        "round_tok_per_s": speeds,
        "ttft_ms": percentiles([a.pieces_at[0] - due for due, a in whole if a.pieces_at]),
        "inter_token_ms": percentiles([gap for _, a in whole for gap in _gaps(a)]),
        "per_token_ms": percentiles([each for _, a in whole for each in _per_token(a)]),
        "total_ms": percentiles([a.ended_at - due for due, a in whole]),
        "late_ms": percentiles([one.answered.sent_at - one.due_at for one in sent if one.answered]),
    }


def percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    """p50, p95 and p99 in milliseconds."""
    if not seconds:
        return None
    found = np.percentile(np.asarray(seconds) * 1e3, PERCENTILES)
    return {f"p{share}": float(value) for share, value in zip(PERCENTILES, found, strict=True)}


def _whole(sent: Sequence[Sent]) -> list[tuple[float, Answered]]:
    """When they were due, and the replies that came whole."""
    return [(one.due_at, one.answered) for one in sent if one.answered and one.answered.is_whole]


def _tokens(sent: Sequence[Sent]) -> int:
    return sum(answered.num_tokens for _, answered in _whole(sent))


def _per_s(count: int, sent: Sequence[Sent]) -> float:
    return count / _wall_s(sent) if count else 0.0


def _median(values: Sequence[float]) -> float | None:
    """None where most rounds have no reply."""
    return float(np.median(values)) or None


def _gaps(answered: Answered) -> list[float]:
    at = answered.pieces_at
    return [later - earlier for earlier, later in itertools.pairwise(at)]


def _per_token(answered: Answered) -> list[float]:
    """Seconds of a token behind the first, on average; nothing for a reply of one."""
    behind = answered.num_tokens - 1
    if behind < 1 or not answered.pieces_at:
        return []
    return [(answered.pieces_at[-1] - answered.pieces_at[0]) / behind]


def _wall_s(sent: Sequence[Sent]) -> float:
    """From the first request to the last end of one."""
    begins = [one.due_at for one in sent]
    ends = [one.answered.ended_at for one in sent if one.answered]
    return max(ends, default=min(begins)) - min(begins)


def _is_known(one: Sent) -> bool:
    return one.is_refused or (one.answered is not None and one.answered.is_whole)


def _error(one: Sent) -> str:
    if one.answered is None:
        return str(one.failure)
    return f"{one.answered.status}: {one.answered.error or 'the reply ended early'}"[:200]
