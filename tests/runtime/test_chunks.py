"""Chunks end where their tokens say; a reply stopped at a border goes on as if never stopped."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import pytest
from support.scripted_backend import ScriptedBackend

from selfdraft.errors import ConfigError
from selfdraft.runtime.chunks import SENTENCES, ChunkedReply
from selfdraft.runtime.generation import Generation
from selfdraft.runtime.logit_params import LogitParams
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.request_json import request_from_json, request_to_json
from selfdraft.runtime.sampling import SamplingParams

PROMPT = (1, 2, 3)
EOS = 15
BYTES = [
    b"Hi",
    b".",
    b" ",
    b"3",
    b".1",
    b"So?",
    b' "No!"',
    b"\n",
    "。".encode(),
    b"x",
    b"<s",
    b"\xc3",
    b"\xa9",
]
TEXT = (0, 11, 12, 1, 2, 0, 2, 3, 4, 5, 2, 6, 2, 9, 7, 9, 8, 10, 9, 0, 1, EOS)


class Pieces:
    special_ids: frozenset[int] = frozenset({EOS})
    strips_first_space = False

    def token_bytes(self, token_id: int) -> bytes:
        return BYTES[token_id] if token_id < len(BYTES) else b"y"


def _backend(tiny: ModuleType, **options: Any) -> ScriptedBackend:
    def script(history: tuple[int, ...]) -> int:
        return TEXT[(len(history) - len(PROMPT)) % len(TEXT)]

    given = {"margin": 20.0, "errors": 0.3} | options
    return ScriptedBackend(tiny, script, eos_ids=(EOS,), **given)


def _loop(backend: Any, drafts: int) -> DecodeLoop:
    tokenizer: Any = Pieces()
    return DecodeLoop(backend, drafts=drafts, tokenizer=tokenizer)


def _request(**options: Any) -> Request:
    return Request(prompt_ids=PROMPT, **{"max_tokens": 30, "stop": ("<stop>",)} | options)


@pytest.mark.parametrize("drafts", range(4))
@pytest.mark.parametrize(
    ("every", "texts"),
    [
        (
            SENTENCES,
            ["Hié. ", "Hi 3.1So? ", ' "No!" ', "x\n", "x。", "<sxHi."],
        ),
        (4, ["Hié.", " Hi 3", '.1So?  "No!"', " x\nx", "。<sxHi", "."]),
    ],
)
def test_chunks_end_at_the_same_tokens_with_any_number_of_drafts(
    tiny: ModuleType, drafts: int, every: int | str, texts: list[str]
) -> None:
    chunks = ChunkedReply(_loop(_backend(tiny), drafts), _request(), every=every)
    found = list(chunks)
    shown = [chunk.text for chunk in found]
    assert "".join(shown) == chunks.result.text
    assert [text for text in shown if text] == texts
    assert sum(len(chunk.events) for chunk in found) == len(chunks.result.tokens)


@pytest.mark.parametrize("drafts", range(4))
@pytest.mark.parametrize("every", [SENTENCES, 1, 5, 100])
def test_text_held_for_a_stop_string_that_never_came_is_in_a_chunk(
    tiny: ModuleType, drafts: int, every: int | str
) -> None:
    """``?`` may begin ``?z``; the token behind it is the stop string, and no part of the reply."""
    request = _request(stop=("?z", " "), min_tokens=9)
    chunks = ChunkedReply(_loop(_backend(tiny), drafts), request, every=every)
    shown = [chunk.text for chunk in chunks]
    assert "".join(shown) == chunks.result.text == "Hié. Hi 3.1So?"
    assert chunks.result.stop_reason == " " and chunks.result.tokens == TEXT[:10]


SAMPLED = SamplingParams(temperature=1.3, seed=11)
PENALISED = LogitParams(repetition_penalty=1.2, frequency_penalty=0.5, no_repeat_ngram_size=3)


@pytest.mark.parametrize("every", [1, 2, 3, 5, SENTENCES])
@pytest.mark.parametrize("drafts", [0, 1, 3])
@pytest.mark.parametrize("same_loop", [True, False])
def test_stopped_reply_goes_on_as_if_never_stopped(
    tiny: ModuleType, every: int | str, drafts: int, same_loop: bool
) -> None:
    """Stopped after every chunk in turn; with the caches, or from the request alone, as JSON."""
    backend = _backend(tiny, margin=2.0)
    request = _request(sampling=SAMPLED, logits=PENALISED, min_tokens=4, logprobs=1)
    whole = Generation(_loop(backend, 0), {0: request})
    expected = [(event.token, event.text, event.logprobs) for event in whole]
    found: list[Any] = []
    loop = _loop(backend, drafts)
    for _ in range(40):
        chunks = ChunkedReply(loop, request, every=every)
        chunk = next(chunks, None)
        if chunk is None:
            break
        found += [(event.token, event.text, event.logprobs) for event in chunk.events]
        chunks.stop()
        tokens = (*PROMPT, *(token for token, _, _ in found))
        assert loop.tokens(0) == tokens
        assert loop._slots.cached[0] <= len(tokens) - 1
        if chunks.result.finish_reason != "closed":
            break
        request = request_from_json(request_to_json(chunks.resumption))
        if not same_loop:
            loop = _loop(backend, drafts)
    assert found == expected
    assert chunks.result.finish_reason == whole.result.finish_reason
    assert chunks.result.resumed_tokens + len(chunks.result.tokens) == len(expected)


@pytest.mark.parametrize("drafts", [0, 2])
def test_sparse_reply_goes_on_exactly_with_its_caches_and_without(
    tiny: ModuleType, sparse_model: ModuleType, drafts: int
) -> None:
    """Rows of the reply were computed as decode steps, not densely as a prompt's are."""
    backend = sparse_model.backend(tiny)
    prompt = tuple(int(i * 7 % 60) for i in range(500))
    request = Request(prompt_ids=prompt, max_tokens=90, sampling=SAMPLED)
    expected = [e.token for e in Generation(DecodeLoop(backend, drafts=0), {0: request})]
    loop = DecodeLoop(backend, drafts=drafts)
    chunks = ChunkedReply(loop, request, every=70)
    first = [event.token for event in next(chunks).events]
    chunks.stop()
    for where in (loop, DecodeLoop(backend, drafts=drafts)):
        rest = Generation(where, {0: chunks.resumption})
        assert first + [event.token for event in rest] == expected
        reused = rest.result.reused_tokens
        assert (reused > len(prompt)) == (where is loop)


def test_saved_slot_and_request_go_on_in_another_loop(tiny: ModuleType) -> None:
    backend = _backend(tiny)
    loop = _loop(backend, 2)
    chunks = ChunkedReply(loop, _request(), every=6)
    first = next(chunks)
    chunks.stop()
    other = _loop(backend, 2)
    other.restore(0, loop.slot_cache(0))
    rest = Generation(other, {0: chunks.resumption})
    text = first.text + "".join(event.text for event in rest)
    assert text == "".join(e.text for e in Generation(_loop(backend, 0), {0: _request()}))
    assert rest.result.reused_tokens > len(PROMPT)


def test_what_cannot_be_cut_or_resumed_is_refused(tiny: ModuleType) -> None:
    backend = _backend(tiny)
    with pytest.raises(ConfigError, match="chunks of 0 are unknown"):
        ChunkedReply(_loop(backend, 0), _request(), every=0)
    with pytest.raises(ConfigError, match="chunks of 'word' are unknown"):
        ChunkedReply(_loop(backend, 0), _request(), every="word")
    with pytest.raises(ConfigError, match="sentences are texts"):
        ChunkedReply(DecodeLoop(backend, drafts=0), _request(stop=()), every=SENTENCES)
    chunks = ChunkedReply(_loop(backend, 0), _request(), every=4)
    list(chunks)
    with pytest.raises(ConfigError, match=r"the reply has ended \(eos\)"):
        chunks.resumption  # noqa: B018 - it is a property that refuses
    with pytest.raises(ConfigError, match="30 tokens already, max_tokens is 30"):
        dataclasses.replace(_request(), resumed_token_ids=(1,) * 30)
