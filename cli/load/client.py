"""One request to a server, timed piece by piece."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from selfdraft.cli.load.address import Address

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
TIMEOUT_S = 600.0
DATA = b"data: "
DONE = b"[DONE]"


@dataclass(slots=True, kw_only=True)
class Answered:
    """What came back, and when."""

    status: int
    sent_at: float
    """Clock when the request was sent."""
    text: str = ""
    """The answer, without its thinking."""
    thought: str = ""
    """What of the reply is thinking."""
    pieces_at: list[float] = field(default_factory=list)
    """Clock when each piece of text came."""
    ended_at: float = 0.0
    usage: Mapping[str, Any] | None = None
    finish_reason: str | None = None
    error: str | None = None
    """What the server said was wrong."""
    retry_after: str | None = None
    is_whole: bool = False
    """It came to its end."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the reply, as the server counts them."""
        return int(self.usage["completion_tokens"]) if self.usage else 0


def ask(
    address: Address,
    path: str,
    body: Mapping[str, Any] | bytes,
    *,
    most_pieces: int | None = None,
    api_key: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Answered:
    """Send ``body`` and take in the answer, streamed or whole.

    ``most_pieces``: hang up after so many pieces of text. Raises ``OSError`` or
    ``http.client.HTTPException`` where the connection fails, ``ValueError`` for an answer that is
    none of OpenAI's API.
    """
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)
    try:
        answered = Answered(status=0, sent_at=time.perf_counter())
        headers = {"Content-Type": "application/json"}
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        connection.request("POST", path, data, headers)
        response = connection.getresponse()
        answered.status = response.status
        answered.retry_after = response.headers.get("Retry-After")
        try:
            if response.headers.get_content_type() == "text/event-stream":
                _take_stream(response, answered, most_pieces)
            else:
                _take_whole(response.read(), answered)
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"the answer is not of OpenAI's API: {error}") from None
        answered.ended_at = time.perf_counter()
        return answered
    finally:
        connection.close()


def refusal_text(data: bytes) -> str:
    """What a refusal says, in the shape of OpenAI's API or in another."""
    try:
        return str(json.loads(data)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return data[:200].decode(errors="replace")


def _take_whole(data: bytes, answered: Answered) -> None:
    answered.pieces_at.append(time.perf_counter())
    if answered.status != 200:
        answered.error = refusal_text(data)
        answered.pieces_at.clear()
        return
    record = json.loads(data)
    _take_choice(record, answered)
    answered.usage = record["usage"]
    answered.is_whole = True


def _take_stream(
    response: http.client.HTTPResponse, answered: Answered, most_pieces: int | None
) -> None:
    while line := response.readline():
        if not line.startswith(DATA):
            continue
        event = line[len(DATA) :].strip()
        if event == DONE:
            answered.is_whole = answered.error is None
            continue
        record = json.loads(event)
        if "error" in record:
            answered.error = str(record["error"]["message"])
            continue
        answered.usage = record.get("usage") or answered.usage
        if _take_choice(record, answered):
            answered.pieces_at.append(time.perf_counter())
            if most_pieces is not None and len(answered.pieces_at) >= most_pieces:
                return


def _take_choice(record: Mapping[str, Any], answered: Answered) -> bool:
    """Add the text of a reply or of a chunk; whether there was any."""
    says = False
    for choice in record["choices"]:
        part = choice.get("delta") or choice.get("message") or choice
        text = part.get("content") or part.get("text") or ""
        thought = part.get("reasoning_content") or ""
        answered.text += text
        answered.thought += thought
        answered.finish_reason = choice["finish_reason"] or answered.finish_reason
        says = says or bool(text or thought)
    return says
