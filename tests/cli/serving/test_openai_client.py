"""The official ``openai`` client, unchanged, against a real server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.http_server import serving, wait_for_idle
from support.reciting_bundle import REPLY

openai = pytest.importorskip("openai", reason="pip install 'selfdraft[dev]'")
pytest.importorskip("uvicorn", reason="pip install 'selfdraft[serve]'")

ASK: Any = [{"role": "user", "content": "recite"}]
MODEL = "reciter"


@pytest.fixture(scope="module")
def server(shared_bundle: Path) -> Iterator[Any]:
    with serving(shared_bundle) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made:
        yield made


def test_chat_gives_the_reply_and_its_usage(client: Any) -> None:
    reply = client.chat.completions.create(model=MODEL, messages=ASK)
    choice = reply.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", REPLY)
    assert choice.finish_reason == "stop"
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.completion_tokens > len(REPLY)


def test_a_stream_carries_the_same_text_and_usage_at_its_end(client: Any, server: Any) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=ASK)
    stream = client.chat.completions.create(
        model=MODEL, messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == REPLY
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({c.id for c in chunks}) == 1
    assert wait_for_idle(server).running == 0
