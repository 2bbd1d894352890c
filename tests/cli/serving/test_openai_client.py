"""The official ``openai`` client, unchanged, against a real server on loopback."""

from __future__ import annotations

import json
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


def test_fields_of_openai_reach_the_request(client: Any) -> None:
    asked: Any = {
        "model": MODEL,
        "messages": ASK,
        "max_completion_tokens": 3,
        "seed": 7,
        "temperature": 0.5,
        "user": "me",
        "n": 1,
        "extra_body": {"return_record": True, "task": "poem", "top_k": 5},
    }
    reply = client.chat.completions.create(**asked)
    record = reply.selfdraft
    assert reply.choices[0].finish_reason == "length"
    assert (reply.usage.completion_tokens, record["seed"]) == (3, 7)
    assert record["verification"] == "match" and len(record["tokens"]) == 3
    assert "poem" in record["telemetry"]["by_task"]


def test_a_stop_string_ends_the_reply_before_it(client: Any) -> None:
    asked: Any = {"model": MODEL, "messages": ASK, "stop": ["é-"]}
    reply = client.chat.completions.create(**asked)
    streamed = client.chat.completions.create(**asked, stream=True)
    text = "".join(c.choices[0].delta.content or "" for c in streamed)
    before = REPLY.partition("é-")[0]
    assert reply.choices[0].message.content == text == before
    assert reply.choices[0].finish_reason == "stop" and reply.choices[0].stop_reason == "é-"


def test_log_probabilities_spell_the_reply(client: Any) -> None:
    reply = client.chat.completions.create(model=MODEL, messages=ASK, logprobs=True, top_logprobs=2)
    entries = reply.choices[0].logprobs.content
    assert bytes(b for entry in entries for b in entry.bytes).decode() == REPLY
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in entries)
    streamed = client.chat.completions.create(
        model=MODEL, messages=ASK, logprobs=True, top_logprobs=2, stream=True
    )
    found = [e for c in streamed if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert found == entries


def test_a_text_is_continued_as_it_is(client: Any) -> None:
    asked: Any = {"model": MODEL, "prompt": "x", "max_tokens": 5}
    reply = client.completions.create(**asked, logprobs=1)
    assert reply.choices[0].text == "yzxyz"
    assert reply.choices[0].logprobs.tokens == list("yzxyz")
    assert reply.choices[0].logprobs.text_offset == [0, 1, 2, 3, 4]
    streamed = client.completions.create(**asked, stream=True)
    assert "".join(c.choices[0].text for c in streamed) == "yzxyz"
    by_tokens = client.completions.create(model=MODEL, prompt=[reply_id("x", client)], max_tokens=2)
    assert by_tokens.choices[0].text == "yz"


def reply_id(text: str, client: Any) -> int:
    """Id of the one token of ``text``, from a record."""
    reply = client.completions.create(
        model=MODEL, prompt=text, max_tokens=1, extra_body={"return_record": True}
    )
    (token,) = reply.selfdraft["prompt_token_ids"]
    return int(token)


def test_a_json_schema_shapes_the_reply(client: Any) -> None:
    pytest.importorskip("llguidance", reason="pip install 'selfdraft[grammar]'")
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    shape = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    reply = client.chat.completions.create(model=MODEL, messages=ASK, response_format=shape)
    found = json.loads(reply.choices[0].message.content)
    assert list(found) == ["ok"] and isinstance(found["ok"], bool)


def test_its_own_message_can_be_sent_back(client: Any) -> None:
    reply = client.chat.completions.create(model=MODEL, messages=ASK)
    longer = [*ASK, reply.choices[0].message, *ASK]
    again = client.chat.completions.create(model=MODEL, messages=longer)
    assert again.choices[0].message.content == REPLY
    assert again.usage.prompt_tokens_details.cached_tokens > 0


def test_models_are_listed_and_others_not_found(client: Any) -> None:
    (model,) = client.models.list().data
    assert model.id == client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="another", messages=ASK)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"n": 2}, "n is not supported"),
        ({"temperature": -1.0}, "temperature"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"extra_body": {"temprature": 1}}, "did you mean 'temperature'"),
        ({"extra_body": {"wrap_up": "Enough."}}, "give thinking_budget"),
        ({"max_tokens": 10, "max_completion_tokens": 5}, "max_tokens"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role"),
        ({"stream_options": {"include_usage": True}}, "stream"),
        ({"messages": [{"role": "user", "content": "x" * 400}]}, "context"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    client: Any, changes: dict[str, Any], word: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=word):
        client.chat.completions.create(**{"model": MODEL, "messages": ASK} | changes)
