"""Every way a reply can end, at every index of an accepted chain: all as in plain decoding.

The scripted backend keeps the tokens of both caches, so a wrong length shows; events are planted
at each place of chains of 0 to K + 1 tokens, alone and beside other slots.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scripted_backend import ScriptedBackend

from selfdraft.errors import ToolkitError
from selfdraft.runtime.generation import Generation
from selfdraft.runtime.logit_params import LogitParams
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import GenerationResult
from selfdraft.runtime.sampling import SamplingParams

PROMPT = (1, 2, 3)
EOS = 15
BYTES = [b"a", b"b", "é".encode()[:1], "é".encode()[1:], b"<s", b"to", b"p>", b" "]


class Pieces:
    """Tokens 0 to 7 spell text, a character and a tag split among them; 15 ends."""

    special_ids: frozenset[int] = frozenset({EOS})
    strips_first_space = False

    def token_bytes(self, token_id: int) -> bytes:
        return BYTES[token_id] if token_id < len(BYTES) else b"." + str(token_id).encode()

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [0, 1] if text.startswith("a") else [7, 0]


TEXT = (0, 2, 3, 1, 4, 5, 6, 0, 9, 10, 7, 2, 3, 11, 12, 0)


def _script(text: Sequence[int]) -> Any:
    def script(history: tuple[int, ...]) -> int:
        return text[(len(history) - len(PROMPT)) % len(text)]

    return script


def _backend(tiny: ModuleType, text: Sequence[int] = TEXT, **options: Any) -> ScriptedBackend:
    return ScriptedBackend(tiny, _script(text), margin=20.0, eos_ids=(EOS,), **options)


def _loop(backend: Any, *, drafts: int, batch: int = 1, **options: Any) -> DecodeLoop:
    tokenizer: Any = Pieces()
    return DecodeLoop(backend, drafts=drafts, batch=batch, tokenizer=tokenizer, **options)


def _reply(loop: DecodeLoop, request: Request, slot: int) -> GenerationResult:
    """One reply with busy neighbours; deltas, tokens and record must agree."""
    others = {
        other: Request(prompt_ids=PROMPT, max_tokens=30 + other, ignore_eos=True)
        for other in range(loop.batch)
        if other != slot
    }
    generation = Generation(loop, {slot: request, **others})
    events = [event for event in generation if event.slot == slot]
    result = generation.results[slot]
    assert tuple(event.token for event in events) == result.tokens
    assert "".join(event.text for event in events) == result.text
    assert [event.logprobs for event in events] == list(result.logprobs or [None] * len(events))
    first = len(request.prompt_ids)
    assert [event.position for event in events] == [first + i for i in range(len(events))]
    assert sum(event.drafted for event in events) == sum(result.accepted)
    return result


def _assert_state(loop: DecodeLoop, slot: int, request: Request, result: GenerationResult) -> None:
    """Caches hold the delivered tokens but the last, and the next turn goes on from there."""
    tokens = (*request.prompt_ids, *result.tokens)
    assert loop.tokens(slot) == tokens
    assert loop._slots.cached[slot] == len(tokens) - 1
    held = loop._states.backbone[slot, : len(tokens) - 1]  # type: ignore[attr-defined]
    assert tuple(held.tolist()) == tokens[:-1]
    following = Request(prompt_ids=(*tokens, 13, 14), max_tokens=6, ignore_eos=True)
    again = [e for e in Generation(loop, {slot: following}) if e.slot == slot]
    plain = DecodeLoop(loop._backend, drafts=0)
    assert [e.token for e in again] == [e.token for e in Generation(plain, {0: following})]


def _compare(backend: Any, request: Request, *, slots: int = 3, **options: Any) -> GenerationResult:
    """The reply with every K and in any slot is that of plain decoding."""
    plain = _reply(_loop(backend, drafts=0, **options), request, 0)
    for drafts in range(5):
        for batch, slot in ((1, 0), (slots, drafts % slots)):
            loop = _loop(backend, drafts=drafts, batch=batch, **options)
            result = _reply(loop, request, slot)
            for name in ("tokens", "text", "logprobs", "finish_reason", "stop_reason"):
                assert getattr(result, name) == getattr(plain, name), (name, drafts, batch)
            _assert_state(loop, slot, request, result)
    return plain


@pytest.mark.parametrize("errors", [0.0, 0.4])
@pytest.mark.parametrize("place", range(11))
def test_end_tokens_end_at_every_index(tiny: ModuleType, place: int, errors: float) -> None:
    text = (*TEXT[:place], EOS, *TEXT[place:])
    backend = _backend(tiny, text, errors=errors)
    request = Request(prompt_ids=PROMPT, max_tokens=14, logprobs=1)
    result = _compare(backend, request)
    assert (result.finish_reason, len(result.tokens)) == ("eos", place + 1)
    many = dataclasses.replace(request, stop_token_ids=(9, 10, 11, text[place]), ignore_eos=True)
    stopped = _compare(backend, many)
    assert stopped.finish_reason == "stop" and stopped.stop_reason == stopped.tokens[-1]


@pytest.mark.parametrize("errors", [0.0, 0.4])
@pytest.mark.parametrize("place", range(11))
def test_stop_strings_end_at_every_index(tiny: ModuleType, place: int, errors: float) -> None:
    text = (*(0, 1, 7, 1, 0, 7, 2, 3, 1, 0, 7)[:place], 4, 5, 6, 0, 0, 0, 0)
    backend = _backend(tiny, text, errors=errors)
    request = Request(prompt_ids=PROMPT, max_tokens=20, logprobs=2, stop=("<stop>", "zzz"))
    result = _compare(backend, request)
    # At place 7 half a character stands before the tag: it turns to U+FFFD with the tag's first token.
    count = place + (place == 7)
    assert result.stop_reason == "<stop>" and len(result.tokens) == count
    kept = _compare(backend, dataclasses.replace(request, include_stop_str_in_output=True))
    assert kept.text == (result.text or "") + "<stop>" and len(kept.tokens) == place + 3


@pytest.mark.parametrize("count", range(1, 9))
def test_max_tokens_and_context_end_at_every_index(tiny: ModuleType, count: int) -> None:
    backend = _backend(tiny, errors=0.3)
    by_length = _compare(backend, Request(prompt_ids=PROMPT, max_tokens=count, logprobs=0))
    assert (by_length.finish_reason, len(by_length.tokens)) == ("length", count)
    request = Request(prompt_ids=PROMPT, ignore_eos=True)
    plain = _reply(_loop(backend, drafts=0, context_length=3 + count), request, 0)
    for drafts in range(5):
        loop = _loop(backend, drafts=drafts, context_length=3 + count)
        result = _reply(loop, request, 0)
        assert (result.tokens, result.finish_reason) == (plain.tokens, "context")


def test_token_logprobs_are_those_of_the_raw_logits(tiny: ModuleType) -> None:
    backend = _backend(tiny, errors=0.3, candidates=4)
    params = LogitParams(repetition_penalty=1.5, logit_bias={8: 30.0})
    request = Request(prompt_ids=PROMPT, max_tokens=9, logprobs=6, logits=params)
    result = _compare(backend, request)
    assert result.logprobs is not None
    for index, record in enumerate(result.logprobs):
        row = backend.logits((*PROMPT, *result.tokens[:index]))
        law = row - np.log(np.exp(row).sum())
        best = np.argsort(-law, kind="stable")[:6]
        assert record.token == result.tokens[index]
        np.testing.assert_allclose(record.logprob, law[record.token], rtol=1e-12, atol=1e-12)
        assert record.top_ids == tuple(best.tolist())
        np.testing.assert_allclose(record.top_logprobs, law[best], rtol=1e-12, atol=1e-12)


OPTIONS: dict[str, Any] = {
    "repetition_penalty": st.sampled_from([0.7, 1.0, 1.8]),
    "frequency_penalty": st.sampled_from([-1.0, 0.0, 0.8]),
    "presence_penalty": st.sampled_from([-0.5, 0.0, 1.5]),
    "logit_bias": st.dictionaries(st.integers(0, 14), st.sampled_from([-5.0, 2.0]), max_size=3),
    "banned_token_ids": st.sampled_from([(), (9,), (1, 10)]),
    "allowed_token_ids": st.sampled_from([None, None, (0, 2, 3, 4, 5, 6, 7, 8, 11, EOS)]),
    "bad_words": st.sampled_from([(), ("ab",), ("x",)]),
    "no_repeat_ngram_size": st.sampled_from([0, 0, 2, 3]),
}


@settings(max_examples=60, deadline=None)
@given(
    logits=st.fixed_dictionaries(OPTIONS),
    temperature=st.sampled_from([0.0, 0.8, 2.0]),
    filters=st.sampled_from([{}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.1}, {"top_k": 30}]),
    lengths=st.sampled_from([(12, 0), (7, 3), (1, 0), (9, 9)]),
    stops=st.sampled_from([(), ("<stop>",), ("é", "a "), ("é<", "b", "p>")]),
    drafts=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_random_requests_give_the_tokens_of_plain_decoding(
    tiny: ModuleType,
    logits: dict[str, Any],
    temperature: float,
    filters: dict[str, Any],
    lengths: tuple[int, int],
    stops: tuple[str, ...],
    drafts: int,
    seed: int,
) -> None:
    """No crash but a refusal that names its reason, nothing dropped, the same seed the same tokens."""
    backend = ScriptedBackend(
        tiny, _script((*TEXT, EOS)), margin=1.5, eos_ids=(EOS,), errors=0.3, candidates=6
    )
    request = Request(
        prompt_ids=PROMPT,
        sampling=SamplingParams(temperature=temperature, seed=seed, **filters),
        logits=LogitParams(**logits),
        max_tokens=lengths[0],
        min_tokens=lengths[1],
        stop=stops,
        logprobs=1,
    )
    plain, speculative = (_outcome(_loop(backend, drafts=depth), request) for depth in (0, drafts))
    assert plain == speculative
    if isinstance(plain, tuple):
        tokens, text = plain[0], plain[1]
        assert not set(tokens) & set(logits["banned_token_ids"])
        assert set(tokens) <= set(logits["allowed_token_ids"] or range(16))
        assert len(tokens) >= min(lengths[1], lengths[0]) or plain[2] == "stop"
        size = logits["no_repeat_ngram_size"]
        whole = (*PROMPT, *tokens)
        grams = [whole[i : i + size] for i in range(len(whole) - size + 1)] if size else []
        assert len(grams) == len(set(grams))
        assert plain[2] != "stop" or not any(stop in text for stop in stops) or lengths[1]


def _outcome(loop: DecodeLoop, request: Request) -> Any:
    try:
        result = _reply(loop, request, 0)
    except ToolkitError as error:
        return error.problem
    return result.tokens, result.text, result.finish_reason, result.logprobs, result.stop_reason
