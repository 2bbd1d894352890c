"""What a load test asks a server: prompts that no cache holds, replies of one length."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from typing import Any

from selfdraft.cli.load.address import HINT, Address
from selfdraft.cli.load.client import CHAT, TEXT, Answered, ask, refusal_text
from selfdraft.cli.load.traffic import Send
from selfdraft.errors import ConfigError

QUESTIONS = (
    "What is a mountain?",
    "Tell me about rivers and the sea.",
    "Why do birds fly south in winter?",
    "How is bread made?",
    "List three animals and where they live.",
    "What does a teacher do?",
)
"""Where the bundle has no examples of its own."""
LOOK_S = 10.0
OK, UNAUTHORIZED = 200, 401


def sender(
    address: Address,
    prompts: Sequence[str],
    *,
    tokens: int,
    chat: bool,
    api_key: str | None,
    timeout_s: float,
) -> Send:
    """Sends numbered requests. The number begins the prompt, so that no two have it in common."""
    path = CHAT if chat else TEXT
    common = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": tokens}
    common |= {"temperature": 0, "ignore_eos": True}

    def send(number: int) -> Answered:
        text = f"{number}. {prompts[number % len(prompts)]}"
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
        body = (asked if chat else {"prompt": text}) | common
        return ask(address, path, body, api_key=api_key, timeout_s=timeout_s)

    return send


def served_model(address: Address, *, api_key: str | None) -> str:
    """The model of a server. Raises ``ConfigError`` where none answers."""
    record = _get(address, "/v1/models", api_key=api_key)
    try:
        return str(record["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise ConfigError("the server at --url names no model", hint=HINT) from None


def num_slots(address: Address) -> int | None:
    """Slots of a server that tells them."""
    try:
        slots = health(address).get("slots")
    except ConfigError:
        return None
    return slots if isinstance(slots, int) else None


def health(address: Address) -> Mapping[str, Any]:
    """What a server says of itself while it takes requests. Raises ``ConfigError``."""
    return _get(address, "/health", api_key=None)


def _get(address: Address, path: str, *, api_key: str | None) -> Mapping[str, Any]:
    # Not by urllib: it would ask a proxy of the environment.
    connection = http.client.HTTPConnection(address.host, address.port, timeout=LOOK_S)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        data = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise ConfigError(f"no server answers at --url: {error}", hint=HINT) from None
    finally:
        connection.close()
    if response.status == UNAUTHORIZED:
        raise ConfigError(
            "the server at --url wants a key, or another one", hint="set SELFDRAFT_API_KEY"
        )
    if response.status != OK:
        raise ConfigError(
            f"the server at --url answers {path} with {response.status}: {refusal_text(data)}",
            hint=HINT,
        )
    try:
        record = json.loads(data)
    except ValueError:
        record = None
    return record if isinstance(record, dict) else {}
