"""Log-probabilities as OpenAI's two APIs write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfdraft.runtime.logprobs import TokenLogprobs
from selfdraft.runtime.result import TokenEvent
from selfdraft.runtime.tokenizer import Tokenizer

LEAST = -9999.0
"""OpenAI's number for a token that cannot be; JSON has no infinity."""


def chat_logprobs(tokenizer: Tokenizer, events: Sequence[TokenEvent]) -> dict[str, Any]:
    """``choices[].logprobs`` of a chat: one entry for each token."""
    return {"content": [_entry(tokenizer, _found(event)) for event in events], "refusal": None}


def text_logprobs(
    tokenizer: Tokenizer, events: Sequence[TokenEvent], *, offset: int
) -> dict[str, Any]:
    """``choices[].logprobs`` of a completion; ``offset``: characters before the first token."""
    offsets = []
    for event in events:
        offsets.append(offset)
        offset += len(event.text)
    found = [_found(event) for event in events]
    return {
        "tokens": [_text(tokenizer, one.token) for one in found],
        "token_logprobs": [max(one.logprob, LEAST) for one in found],
        "top_logprobs": [
            {_text(tokenizer, token): max(value, LEAST) for token, value in _top(one)}
            for one in found
        ],
        "text_offset": offsets,
    }


def _found(event: TokenEvent) -> TokenLogprobs:
    assert event.logprobs is not None
    return event.logprobs


def _entry(tokenizer: Tokenizer, found: TokenLogprobs) -> dict[str, Any]:
    return _token(tokenizer, found.token, found.logprob) | {
        "top_logprobs": [_token(tokenizer, token, value) for token, value in _top(found)]
    }


def _token(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    # A token may be part of a character: its bytes say which.
    return {
        "token": _text(tokenizer, token),
        "logprob": max(logprob, LEAST),
        "bytes": list(tokenizer.token_bytes(token)),
    }


def _text(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", errors="replace")


def _top(found: TokenLogprobs) -> list[tuple[int, float]]:
    return list(zip(found.top_ids, found.top_logprobs, strict=True))
