"""Thinking ends at its budget, at every index of a draft chain, with the tokens of plain decoding."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from support.scripted_backend import Script, ScriptedBackend

from selfdraft.errors import ConfigError
from selfdraft.runtime.char_completion import CharCompletion
from selfdraft.runtime.generation import Generation
from selfdraft.runtime.grammar import StructuredOutput
from selfdraft.runtime.logit_params import LogitParams
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.request_json import request_from_json, request_to_json
from selfdraft.runtime.result import GenerationResult
from selfdraft.runtime.sampling import SamplingParams
from selfdraft.runtime.thinking import Thinking, ThinkingBudget, ThinkTags
from selfdraft.runtime.thinking_record import thinking_record

EOS, START, FIRST_WORD, NUM_WORDS, ANSWER = 1, 2, 8, 8, 3
ONE = ThinkTags(start_ids=(START,), end_ids=(3,))
THREE = ThinkTags(start_ids=(START,), end_ids=(4, 5, 6))
TAGS = pytest.mark.parametrize("tags", [ONE, THREE], ids=["1-token end", "3-token end"])
OPENED = (0, 9, START, 10)
CLOSED = (0, 9)
WRAP_UP = (7, 8, 7)
GREEDY = SamplingParams()


def thinker(tags: ThinkTags, length: int) -> Script:
    """Opens the thinking, thinks ``length`` words, closes it, and answers."""

    def script(history: tuple[int, ...]) -> int:
        if START not in history:
            return START
        said = history[len(history) - 1 - history[::-1].index(START) + 1 :]
        if history[: len(OPENED)] == OPENED:
            said = said[1:]
        count = len(tags.end_ids)
        for index in range(len(said) - count + 1):
            if said[index : index + count] == tags.end_ids:
                answered = len(said) - index - count
                return EOS if answered == ANSWER else word(history)
        for begun in range(count - 1, 0, -1):
            if said[-begun:] == tags.end_ids[:begun]:
                return tags.end_ids[begun]
        return tags.end_ids[0] if len(said) >= length else word(history)

    return script


def word(history: Sequence[int]) -> int:
    return FIRST_WORD + sum(i * t for i, t in enumerate(history)) % NUM_WORDS


def expected(prompt: Sequence[int], length: int, thinking: Thinking) -> tuple[int, ...]:
    """The greedy reply, from the rules alone."""
    text = [*prompt, *(() if START in prompt else (START,))]
    for _ in range(min(length, thinking.budget)):
        text.append(word(text))
    if length >= thinking.budget > 0:
        text += thinking.wrap_up_ids
    text += thinking.tags.end_ids
    for _ in range(ANSWER):
        text.append(word(text))
    return (*text[len(prompt) :], EOS)


def replies(
    backend: Any,
    requests: Sequence[Request],
    *,
    drafts: int,
    tokenizer: Any = None,
    context_length: int | None = None,
) -> list[GenerationResult]:
    loop = DecodeLoop(
        backend,
        batch=len(requests),
        drafts=drafts,
        context_length=context_length,
        tokenizer=tokenizer,
    )
    generation = Generation(loop, dict(enumerate(requests)))
    events = list(generation)
    results = [generation.results[slot] for slot in range(len(requests))]
    for slot, result in enumerate(results):
        own = [event for event in events if event.slot == slot]
        assert tuple(event.token for event in own) == result.tokens
        assert sum(event.drafted for event in own) == sum(result.accepted)
        delivered = 1 + result.steps + sum(result.accepted) + result.forced_drafts
        assert delivered - own[-1].drafted == len(result.tokens)  # an end in mid-chain has no bonus
        assert len(loop.tokens(slot)) == result.prompt_tokens + len(result.tokens)
    return results


@TAGS
@pytest.mark.parametrize("wrap_up", [(), WRAP_UP], ids=["bare", "wrap-up"])
@pytest.mark.parametrize("prompt", [OPENED, CLOSED], ids=["opened in the prompt", "opened later"])
def test_greedy_reply_is_what_the_rules_say_with_any_number_of_drafts(
    tiny: ModuleType, tags: ThinkTags, wrap_up: tuple[int, ...], prompt: tuple[int, ...]
) -> None:
    # Budgets 0, 1, K, K + 1 for K = 1..4, and natural ends before, at and behind the border.
    for budget, natural in itertools.product((0, 1, 2, 3, 4, 5), (-3, -2, -1, 0, 1, 2, 4)):
        length = budget + natural
        if length < 0:
            continue
        backend = ScriptedBackend(tiny, thinker(tags, length), eos_ids=(EOS,))
        thinking = Thinking(budget=budget, tags=tags, wrap_up_ids=wrap_up)
        wanted = expected(prompt, length, thinking)
        request = Request(prompt_ids=prompt, sampling=GREEDY, thinking=thinking)
        for drafts in range(5):
            (result,) = replies(backend, [request], drafts=drafts)
            assert result.tokens == wanted, (budget, length, drafts)
            assert result.finish_reason == "eos"
            record = result.thinking
            assert record is not None and record.closed and not record.violated
            assert record.thinking_tokens == min(length, budget)
            assert record.triggered == (length + len(tags.end_ids) > budget)
            shorter = dataclasses.replace(request, max_tokens=len(wanted) - 1)
            (result,) = replies(backend, [shorter], drafts=drafts)
            assert sum(result.accepted) == sum(result.drafted), "a sure head, and still rejected"


@TAGS
def test_slots_keep_to_budgets_of_their_own(tiny: ModuleType, tags: ThinkTags) -> None:
    backend = ScriptedBackend(tiny, thinker(tags, 6), eos_ids=(EOS,), errors=0.3)
    for budgets in ((0, 1, 2), (3, 5, 40), (7, 6, 4), (5, 0, 8)):
        thoughts = [Thinking(budget=b, tags=tags, wrap_up_ids=WRAP_UP[:1]) for b in budgets]
        requests = [Request(prompt_ids=OPENED, thinking=thinking) for thinking in thoughts]
        for drafts in range(5):
            results = replies(backend, requests, drafts=drafts)
            wanted = [expected(OPENED, 6, thinking) for thinking in thoughts]
            assert [result.tokens for result in results] == wanted


@TAGS
@pytest.mark.parametrize("limit", ["max_tokens", "context"])
def test_reply_cut_at_every_token_ends_there(tiny: ModuleType, tags: ThinkTags, limit: str) -> None:
    backend = ScriptedBackend(tiny, thinker(tags, 9), eos_ids=(EOS,))
    thinking = Thinking(budget=4, tags=tags, wrap_up_ids=WRAP_UP)
    whole = expected(OPENED, 9, thinking)
    for count, drafts in itertools.product(range(1, len(whole)), range(5)):
        by_length = limit == "max_tokens"
        request = Request(
            prompt_ids=OPENED, thinking=thinking, max_tokens=count if by_length else None
        )
        context = None if by_length else len(OPENED) + count
        (result,) = replies(backend, [request], drafts=drafts, context_length=context)
        assert result.tokens == whole[:count]
        assert result.finish_reason == ("length" if by_length else "context")
        record = result.thinking
        assert record is not None and not record.violated
        assert record.thinking_tokens == min(count, 4)
        assert record.triggered == (count >= 4)
        assert record.closed == (count >= 4 + len(WRAP_UP) + len(tags.end_ids))


@TAGS
@pytest.mark.parametrize("batch", [1, 3])
def test_sampled_replies_are_those_of_plain_decoding(
    tiny: ModuleType, tags: ThinkTags, batch: int
) -> None:
    # Tags come at any time here: drafted beyond the border, begun and broken off, opened anew.
    backend = ScriptedBackend(
        tiny, thinker(tags, 4), eos_ids=(EOS,), errors=0.2, margin=2.0, context_length=64
    )
    rejected = reopened = 0
    for seed, budget in itertools.product(range(6), (0, 1, 2, 5)):
        requests = [
            Request(
                prompt_ids=(OPENED, CLOSED, (0,))[slot],
                sampling=SamplingParams(temperature=1.0, seed=100 * slot + seed),
                thinking=Thinking(budget=budget, tags=tags, wrap_up_ids=WRAP_UP[: seed % 3]),
                max_tokens=32,
            )
            for slot in range(batch)
        ]
        plain = replies(backend, requests, drafts=0)
        for drafts in range(1, 5):
            found = replies(backend, requests, drafts=drafts)
            assert [r.tokens for r in found] == [r.tokens for r in plain]
            assert [r.thinking for r in found] == [r.thinking for r in plain]
            assert [r.finish_reason for r in found] == [r.finish_reason for r in plain]
            rejected += sum(sum(r.drafted) - sum(r.accepted) for r in found)
        assert not any(r.thinking.violated for r in plain if r.thinking)
        reopened += sum(r.tokens.count(START) > 1 for r in plain)
    assert rejected > 100 and reopened > 0


@TAGS
@pytest.mark.parametrize("drafts", [1, 2, 4])
def test_rejection_mode_keeps_to_the_budget_too(
    tiny: ModuleType, tags: ThinkTags, drafts: int
) -> None:
    backend = ScriptedBackend(tiny, thinker(tags, 50), eos_ids=(EOS,), errors=0.2, margin=4.0)
    cut = 0
    for seed, budget in itertools.product(range(8), (0, 1, 2, 3, 6)):
        request = Request(
            prompt_ids=OPENED,
            sampling=SamplingParams(temperature=1.0, seed=seed, verification="rejection"),
            thinking=Thinking(budget=budget, tags=tags, wrap_up_ids=WRAP_UP[: seed % 4]),
            max_tokens=16,
        )
        (result,) = replies(backend, [request], drafts=drafts)
        assert result.thinking is not None and not result.thinking.violated
        if result.thinking.triggered and START not in result.tokens:
            wrap_up = WRAP_UP[: seed % 4] if budget else ()
            assert result.tokens[budget:][: len(wrap_up) + 1] == (*wrap_up, tags.end_ids[0])
            cut += 1
    assert cut > 20


@TAGS
def test_resumed_reply_has_what_is_left_of_the_budget(tiny: ModuleType, tags: ThinkTags) -> None:
    backend = ScriptedBackend(tiny, thinker(tags, 9), eos_ids=(EOS,))
    thinking = Thinking(budget=3, tags=tags, wrap_up_ids=WRAP_UP)
    request = Request(prompt_ids=OPENED, thinking=thinking)
    (whole,) = replies(backend, [request], drafts=0)
    for count, drafts in itertools.product(range(1, len(whole.tokens)), (0, 3)):
        resumed = dataclasses.replace(request, resumed_token_ids=whole.tokens[:count])
        generation = Generation(DecodeLoop(backend, drafts=drafts), {0: resumed})
        list(generation)
        assert generation.result.tokens == whole.tokens[count:]
        assert generation.result.thinking == whole.thinking


def test_request_in_json_keeps_budget_and_structure() -> None:
    request = Request(
        prompt_ids=OPENED,
        thinking=Thinking(budget=64, tags=THREE, wrap_up_ids=WRAP_UP),
        structured=StructuredOutput(kind="regex", source="a+"),
    )
    assert request_from_json(json.loads(json.dumps(request_to_json(request)))) == request


def test_forced_tokens_stand_among_the_drafts(tiny: ModuleType) -> None:
    backend = ScriptedBackend(tiny, thinker(THREE, 50), eos_ids=(EOS,))
    thinking = Thinking(budget=4, tags=THREE, wrap_up_ids=WRAP_UP)
    request = Request(prompt_ids=OPENED, thinking=thinking)
    (result,) = replies(backend, [request], drafts=3)
    # First word · 3 words and the first forced token · 4 forced ones · the last one and a word ·
    # 2 words and the end.
    assert (result.steps, result.drafted, result.forced_drafts) == (4, (2, 2, 2), 4)
    assert result.thinking is not None and result.thinking.forced_tokens == 6
    (without,) = replies(backend, [Request(prompt_ids=OPENED, max_tokens=20)], drafts=3)
    assert without.forced_drafts == 0 and without.thinking is None


def test_thinking_that_starts_anew_has_what_is_left(tiny: ModuleType) -> None:
    def script(history: tuple[int, ...]) -> int:
        """Thinks in pairs of words for ever."""
        return (START, word(history), word(history), 3)[(len(history) - len(CLOSED)) % 4]

    backend = ScriptedBackend(tiny, script)
    for drafts in range(5):
        thinking = Thinking(budget=3, tags=ONE, wrap_up_ids=(7,))
        request = Request(prompt_ids=CLOSED, thinking=thinking, max_tokens=11)
        (result,) = replies(backend, [request], drafts=drafts)
        w = result.tokens
        # One whole pair; one word and the cut; from then on nothing but the empty pair.
        assert w[:8] == (START, w[1], w[2], 3, START, w[5], 7, 3)
        pairs = itertools.pairwise(w[7:])
        assert all(following == 3 for token, following in pairs if token == START)
        record = result.thinking
        assert record is not None and record.thinking_tokens == 3 and not record.violated


def test_end_of_thinking_cannot_be_banned(tiny: ModuleType) -> None:
    backend = ScriptedBackend(tiny, thinker(ONE, 30), eos_ids=(EOS,), candidates=4)
    for sampling in (GREEDY, SamplingParams(temperature=1.0, seed=1)):
        for drafts in (0, 2):
            request = Request(
                prompt_ids=OPENED,
                sampling=sampling,
                logits=LogitParams(banned_token_ids=(3, START)),
                thinking=Thinking(budget=2, tags=ONE),
                max_tokens=12,
            )
            (result,) = replies(backend, [request], drafts=drafts)
            assert result.tokens[2] == 3 and 3 not in (*result.tokens[:2], *result.tokens[3:])


def test_thinking_in_the_prompt_is_open_or_closed_by_its_last_tag() -> None:
    assert ONE.open_in(OPENED) and not ONE.open_in(CLOSED)
    assert not ONE.open_in((START, 9, 3)) and ONE.open_in((START, 9, 3, START))
    assert THREE.open_in((START, 4, 5)) and not THREE.open_in((START, 4, 5, 6))
    assert not THREE.open_in((4, 5, 6))


def test_budget_that_is_not_kept_shows_in_the_record() -> None:
    thinking = Thinking(budget=2, tags=ONE)
    record = thinking_record(
        thinking,
        ThinkingBudget(thinking, opened=True),
        temperature=0.0,
        prompt_ids=OPENED,
        reply=(9, 9, 9, 3, START, 9),
    )
    assert (record.thinking_tokens, record.violated, record.closed) == (4, True, False)


# UTF-8: the snowman is bytes E2 98 83, the smiling face F0 9F 98 80.
PIECES = {
    8: b"a",
    9: b"\xe2",
    10: b"\x98",
    11: b"\x83",
    12: b"\xf0",
    13: b"\x9f\x98",
    14: b"\x80",
    15: b"\x83b",
}
TEXT = (8, 9, 10, 11, 8, 12, 13, 14, 9, 10, 15, 9, 10, 11)


class Pieces:
    """A tokenizer that knows the bytes of its tokens."""

    special_ids: frozenset[int] = frozenset()
    strips_first_space = False

    def token_bytes(self, token_id: int) -> bytes:
        return PIECES.get(token_id, b"")

    def derived(self, key: object, make: Any) -> Any:
        return make()


def reciter(history: tuple[int, ...]) -> int:
    said = history[len(OPENED) :]
    if 3 in said:
        return 8
    return TEXT[len(said) % len(TEXT)]


def test_cut_never_falls_into_a_character(tiny: ModuleType) -> None:
    backend = ScriptedBackend(tiny, reciter, candidates=4)
    completed = set()
    for budget, drafts in itertools.product(range(15), range(5)):
        thinking = Thinking(budget=budget, tags=ONE, wrap_up_ids=(8,))
        request = Request(prompt_ids=OPENED, thinking=thinking, max_tokens=20)
        (result,) = replies(backend, [request], drafts=drafts, tokenizer=Pieces())
        thought = result.tokens[: result.tokens.index(3) - (budget > 0)]
        assert thought == TEXT[: len(thought)]
        b"".join(PIECES[token] for token in thought).decode("utf-8")
        record = result.thinking
        assert record is not None and not record.violated
        assert record.completing_tokens == len(thought) - budget <= 3
        completed.add(record.completing_tokens)
    assert completed == {0, 1, 2}


def test_unfinished_character_is_completed_even_where_another_token_is_likelier(
    tiny: ModuleType,
) -> None:
    def script(history: tuple[int, ...]) -> int:
        return 9  # always begins a character

    backend = ScriptedBackend(tiny, script, candidates=4)
    found = set()
    for seed, drafts in itertools.product(range(6), range(4)):
        request = Request(
            prompt_ids=OPENED,
            sampling=SamplingParams(temperature=1.0, seed=seed, top_k=1),
            thinking=Thinking(budget=1, tags=ONE),
            max_tokens=6,
        )
        (result,) = replies(backend, [request], drafts=drafts, tokenizer=Pieces())
        thought = result.tokens[: result.tokens.index(3)]
        data = b"".join(PIECES[token] for token in thought)
        assert thought[0] == 9 and len(data.decode("utf-8")) <= 2
        found.add(thought)
    assert len(found) == 1, "the same law with any number of drafts"


def test_character_that_no_token_completes_is_cut() -> None:
    completion = CharCompletion(lambda token: [b"\xe2", b"x", b""][token], vocab_size=3)
    pending = completion.pending(b"", 0)
    assert pending == b"\xe2" and not completion.possible(pending)
    budget = ThinkingBudget(Thinking(budget=1, tags=ONE), opened=True, completion=completion)
    budget.advance(0)
    assert budget.forced == 3


@pytest.mark.parametrize(
    ("pending", "token", "possible"),
    [
        (b"\xe2", b"\x98", True),
        (b"\xe2\x98", b"\x83", True),
        (b"\xe2\x98", b"\x83b", True),
        (b"\xe2\x98", b"\x83\xe2", False),
        (b"\xe2\x98", b"a", False),
        (b"\xe2", b"\x28", False),
        (b"\xf0", b"\x9f\x98", True),
        (b"\xf0", b"\x80", False),
        (b"", b"\x80", False),
    ],
)
def test_completing_token_ends_the_character_and_begins_no_other(
    pending: bytes, token: bytes, possible: bool
) -> None:
    completion = CharCompletion(lambda _: token, vocab_size=1)
    assert completion.possible(pending) == possible
    assert completion.mask(pending).tolist() == [possible]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"budget": -1}, "thinking budget is -1"),
        ({"budget": True}, "thinking budget is True"),
        ({"budget": 1, "wrap_up_ids": (8, 3)}, "holds the end tag"),
    ],
)
def test_impossible_budgets_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Thinking(tags=ONE, **options)


def test_impossible_tags_are_refused(tiny: ModuleType) -> None:
    with pytest.raises(ConfigError, match="empty"):
        ThinkTags(start_ids=(1,), end_ids=())
    with pytest.raises(ConfigError, match="the same"):
        ThinkTags(start_ids=(1,), end_ids=(1,))
    backend = ScriptedBackend(tiny, thinker(ONE, 1))
    foreign = Thinking(budget=1, tags=ThinkTags(start_ids=(2,), end_ids=(99,)))
    with pytest.raises(ConfigError, match="thinking end token 99 is outside"):
        DecodeLoop(backend).begin({0: Request(prompt_ids=(0,), thinking=foreign)})
