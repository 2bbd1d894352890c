"""Caches and counters between steps, turns and requests."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from selfdraft.errors import ConfigError, ResourceError
from selfdraft.runtime.generation import Generation, generate
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.sampling import SamplingParams

PROMPT = (0, 5, 9, 2, 7)


FP32 = 1e-4
"""Tolerance of caches that fp32 graphs computed, in chunks or row by row."""


def _request(prompt: tuple[int, ...] = PROMPT, **options: Any) -> Request:
    return Request(prompt_ids=prompt, **{"max_tokens": 40} | options)


def _plain(backend: Any, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    generation = generate(backend, prompt, max_tokens=count, drafts=0)
    return tuple(event.token for event in generation)


def _turn(loop: DecodeLoop, request: Request, slot: int = 0) -> tuple[int, ...]:
    return tuple(event.token for event in Generation(loop, {slot: request}))


def _caches(loop: DecodeLoop) -> dict[str, Any]:
    """Committed rows of both caches, by state, as fp64."""
    arrays = loop._backend.export_states(loop._states, slot=0, lengths=_lengths(loop))
    return {name: array.astype(np.float64) for name, array in arrays.items()}


def _lengths(loop: DecodeLoop) -> dict[str, int]:
    return {"backbone": loop._slots.cached[0], "mtp": loop._slots.drafter_cached[0]}


def _assert_caches_match_a_fresh_prefill(loop: DecodeLoop, backend: Any) -> None:
    """Committed rows of both caches equal those of one prefill over the same tokens."""
    fresh = DecodeLoop(backend, drafts=1, prefill_rows=256)
    fresh.begin({0: Request(prompt_ids=loop.tokens(0), max_tokens=8)})
    fresh.step()
    lengths = _lengths(loop)
    assert lengths["backbone"] == len(loop.tokens(0)) - 1
    theirs = fresh._backend.export_states(fresh._states, slot=0, lengths=lengths)
    tolerance = 1e-9 if backend.name == "reference" else FP32
    for name, ours in _caches(loop).items():
        np.testing.assert_allclose(ours, theirs[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("drafts", [1, 2, 4])
def test_caches_after_partial_acceptance_equal_a_fresh_prefill(
    tiny: ModuleType, drafts: int
) -> None:
    backend = tiny.backend()
    loop = DecodeLoop(backend, drafts=drafts, prefill_rows=3)
    loop.begin({0: _request()})
    for _ in range(6):
        loop.step()
        _assert_caches_match_a_fresh_prefill(loop, backend)
    assert loop._slots.drafter_cached[0] > len(PROMPT)


@pytest.mark.parametrize("drafts", [2, 3])
def test_caches_of_the_crafted_model_after_mixed_verdicts(noisy: Any, drafts: int) -> None:
    loop = DecodeLoop(noisy, drafts=drafts)
    loop.begin({0: _request(max_tokens=60)})
    while loop.active:
        loop.step()
    result = loop.result(0)
    assert 0 < result.accepted[-1] < result.accepted[0] < result.drafted[0]
    fresh = DecodeLoop(noisy, drafts=1)
    fresh.begin({0: Request(prompt_ids=loop.tokens(0), max_tokens=2)})
    fresh._drafting.settle()  # type: ignore[union-attr]
    theirs = noisy.export_states(fresh._states, slot=0, lengths=_lengths(loop))
    tolerance = 1e-6 if noisy.name == "reference" else FP32
    for name, ours in _caches(loop).items():
        if name.startswith("mtp."):
            np.testing.assert_allclose(
                ours, theirs[name], rtol=tolerance, atol=tolerance, err_msg=name
            )


@pytest.mark.parametrize("drafts", [0, 1, 3])
def test_next_turn_continues_from_the_caches(noisy: Any, drafts: int) -> None:
    loop = DecodeLoop(noisy, drafts=drafts)
    first = _turn(loop, _request(max_tokens=17))
    assert first == _plain(noisy, PROMPT, 17)
    second_prompt = (*PROMPT, *first, 11, 12, 13)
    assert _turn(loop, _request(second_prompt)) == _plain(noisy, second_prompt, 40)
    reused = loop.result(0).reused_tokens
    # The last step's rows wait for a catch-up that never came, and one row for its next token.
    assert len(PROMPT) + 17 - 1 - (drafts + 2 if drafts else 0) <= reused
    assert reused <= len(PROMPT) + 17 - 1


@pytest.mark.parametrize("drafts", [0, 2])
def test_turn_that_changes_an_earlier_token_keeps_what_comes_before_it(
    noisy: Any, drafts: int
) -> None:
    loop = DecodeLoop(noisy, drafts=drafts)
    _turn(loop, _request(max_tokens=20))
    edited = (*loop.tokens(0)[:12], 33, 34)
    assert edited[12] != loop.tokens(0)[12]
    assert _turn(loop, _request(edited)) == _plain(noisy, edited, 40)
    # The row of token 11 in the head's cache holds token 12, which changed.
    assert loop.result(0).reused_tokens == (11 if drafts else 12)


@pytest.mark.parametrize("drafts", [0, 2])
def test_same_prompt_again_gives_the_same_text(noisy: Any, drafts: int) -> None:
    loop = DecodeLoop(noisy, drafts=drafts)
    first = _turn(loop, _request())
    assert _turn(loop, _request()) == first
    assert loop.result(0).reused_tokens == len(PROMPT) - 1
    loop.reset(0)
    assert loop.tokens(0) == ()
    assert _turn(loop, _request()) == first
    assert loop.result(0).reused_tokens == 0


def test_closing_early_leaves_the_loop_ready(noisy: Any) -> None:
    loop = DecodeLoop(noisy, drafts=3)
    plain = _plain(noisy, PROMPT, 40)
    for count in range(8):
        with Generation(loop, {0: _request()}) as generation:
            taken = tuple(next(generation).token for _ in range(count))
        assert taken == plain[:count]
        assert loop.active == ()
        if count:
            assert generation.result.finish_reason == "closed"
    text = loop.tokens(0)
    assert _turn(loop, _request((*text, 3))) == _plain(noisy, (*text, 3), 40)


def test_interrupted_prefill_leaves_the_loop_ready(noisy: Any) -> None:
    loop = DecodeLoop(noisy, drafts=1, prefill_rows=2)

    def interrupt(done: int, total: int) -> None:
        if done >= 4:
            raise KeyboardInterrupt

    generation = Generation(loop, {0: _request()}, on_progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(generation)
    assert loop.active == ()
    assert _turn(loop, _request()) == _plain(noisy, PROMPT, 40)
    assert loop.result(0).reused_tokens > 0


def test_progress_counts_the_tokens_of_all_prompts(noisy: Any) -> None:
    seen: list[tuple[int, int]] = []
    loop = DecodeLoop(noisy, batch=2, drafts=1, prefill_rows=4)
    requests = {0: _request(tuple(range(9))), 1: _request((0, 1, 2))}
    loop.begin(requests, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(4, 12), (8, 12), (12, 12)]


@pytest.mark.parametrize("drafts", [0, 1, 3])
def test_request_joins_while_others_generate(noisy: Any, drafts: int) -> None:
    loop = DecodeLoop(noisy, batch=3, drafts=drafts, prefill_rows=4)
    prompts = [PROMPT, (0, 8), (0, *range(20, 33))]
    tokens: dict[int, list[int]] = {0: [], 1: [], 2: []}

    def take(events: list[Any]) -> None:
        for event in events:
            tokens[event.slot].append(event.token)

    for slot, prompt in enumerate(prompts):
        take(loop.begin({slot: _request(prompt)}))
        for _ in range(3):
            take(loop.step())
    while loop.active:
        take(loop.step())
    for slot, prompt in enumerate(prompts):
        assert tuple(tokens[slot]) == _plain(noisy, prompt, 40)
    if drafts:
        assert loop.result(0).accepted[0] > 5, "drafting goes on after a join"


@pytest.mark.parametrize("drafts", [1, 2, 4])
def test_stop_token_at_every_index_of_an_accepted_chain(
    tiny: ModuleType, copy_model: ModuleType, drafts: int
) -> None:
    backend = copy_model.backend(tiny)  # accepts every draft
    plain = _plain(backend, PROMPT, 60)
    indices_hit = set()
    for end in range(1, 40):
        if plain[end] in plain[:end]:
            continue
        loop = DecodeLoop(backend, drafts=drafts)
        events = list(Generation(loop, {0: _request(stop_token_ids=(plain[end], 63))}))
        assert tuple(event.token for event in events) == plain[: end + 1]
        assert events[-1].drafted == ((end - 1) % (drafts + 1) < drafts)
        result = loop.result(0)
        assert result.finish_reason == "stop"
        assert sum(result.accepted) == sum(event.drafted for event in events)
        assert len(result.tokens) == 1 + sum(result.accepted) + sum(
            not event.drafted for event in events[1:]
        )
        indices_hit.add((end - 1) % (drafts + 1))
        following = (*PROMPT, *result.tokens, 21)
        assert _turn(loop, _request(following)) == _plain(backend, following, 40)
    assert indices_hit == set(range(drafts + 1))


@pytest.mark.parametrize("drafts", [0, 2])
def test_end_token_of_the_model_ends_unless_ignored(
    tiny: ModuleType, copy_model: ModuleType, drafts: int
) -> None:
    plain = _plain(copy_model.backend(tiny), PROMPT, 40)
    end = next(i for i in range(5, 40) if plain[i] not in plain[:i])
    backend = copy_model.backend(tiny, eos_ids=(plain[end],))
    loop = DecodeLoop(backend, drafts=drafts)
    assert _turn(loop, _request()) == plain[: end + 1]
    assert loop.result(0).finish_reason == "eos"
    assert _turn(loop, _request(ignore_eos=True)) == plain
    assert loop.result(0).finish_reason == "length"


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=1.0, seed=3)])
def test_min_tokens_counts_delivered_tokens_with_and_without_drafts(
    tiny: ModuleType, copy_model: ModuleType, sampling: SamplingParams
) -> None:
    backend = copy_model.backend(tiny, noise=0.2, eos_ids=tuple(range(1, 60)))
    by_depth = []
    for drafts in range(4):
        loop = DecodeLoop(backend, drafts=drafts)
        by_depth.append(_turn(loop, _request(sampling=sampling, min_tokens=9)))
        assert len(by_depth[-1]) >= 10
        assert not set(by_depth[-1][:9]) & set(range(1, 60))
    assert by_depth.count(by_depth[0]) == 4


def test_finished_slots_idle_while_others_go_on(noisy: Any) -> None:
    loop = DecodeLoop(noisy, batch=3, drafts=2)
    lengths = (3, 50, 1)
    requests = {slot: _request(max_tokens=count) for slot, count in enumerate(lengths)}
    list(Generation(loop, requests))
    assert [len(loop.result(slot).tokens) for slot in range(3)] == list(lengths)
    assert loop.result(2).steps == 0
    assert 0 < loop.result(0).steps <= 2 < loop.result(1).steps
    for slot, count in enumerate(lengths):
        assert loop.result(slot).tokens == _plain(noisy, PROMPT, count)


def test_result_adds_up(noisy: Any) -> None:
    generation = generate(noisy, PROMPT, max_tokens=50, drafts=3)
    events = list(generation)
    result = generation.result
    assert result.prompt_tokens == len(PROMPT) and result.reused_tokens == 0
    assert len(result.tokens) == 1 + result.steps + sum(result.accepted)
    assert sum(event.drafted for event in events) == sum(result.accepted)
    assert result.drafted[0] >= result.drafted[1] >= result.drafted[2] > 0
    assert result.drafted[0] in (result.steps, result.steps - 1)  # none when one token is left
    assert result.accepted[0] >= result.accepted[1] >= result.accepted[2] > 0
    assert result.acceptance_rate == sum(result.accepted) / sum(result.drafted)
    assert result.tokens_per_step == 49 / result.steps
    assert result.state_bytes > 0 and result.verification == "greedy" and not result.synthetic
    assert result.prefill_tok_per_s and result.decode_tok_per_s


def test_plain_decoding_does_no_mtp_work(noisy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(noisy), "run_mtp", None)
    result = _result_of(noisy, drafts=0)
    assert result.drafted == () and result.acceptance_rate is None
    assert result.tokens_per_step == 1.0


def _result_of(backend: Any, **options: Any) -> Any:
    generation = generate(backend, PROMPT, max_tokens=10, **options)
    list(generation)
    return generation.result


def test_bundle_without_a_head_decodes_plainly_and_refuses_drafts(tiny: ModuleType) -> None:
    backend = tiny.backend(tiny.model_spec(mtp=None))
    assert _result_of(backend).drafted == ()
    with pytest.raises(ConfigError, match="no MTP head"):
        DecodeLoop(backend, drafts=1)


def test_padded_steps_change_nothing(noisy: Any) -> None:
    loop = DecodeLoop(noisy, drafts=0, step_rows=5)
    assert _turn(loop, _request()) == _plain(noisy, PROMPT, 40)


def test_forced_acceptance_follows_its_rates_and_is_marked(noisy: Any) -> None:
    loop = DecodeLoop(noisy, drafts=2, forced_acceptance=(0.8, 0.5), context_length=256)
    drafted, accepted = np.zeros(2), np.zeros(2)
    for start in range(6):
        list(Generation(loop, {0: _request((0, 1 + start), max_tokens=None)}))
        result = loop.result(0)
        assert result.synthetic
        drafted += result.drafted
        accepted += result.accepted
    np.testing.assert_allclose(accepted / drafted, [0.8, 0.4], atol=0.06)


def test_two_generations_on_one_loop_do_not_mix(noisy: Any) -> None:
    loop = DecodeLoop(noisy)
    first = Generation(loop, {0: _request()})
    next(first)
    with pytest.raises(ConfigError, match="another generation"):
        next(Generation(loop, {0: _request()}))
    assert len(list(first)) == 39


def test_beginning_nothing_or_in_no_slot_is_refused(noisy: Any) -> None:
    loop = DecodeLoop(noisy, batch=2)
    with pytest.raises(ConfigError, match="no request"):
        loop.begin({})
    for slot in (-1, 2):
        with pytest.raises(ConfigError, match=f"slot {slot} is none of this loop's 2"):
            loop.begin({slot: _request()})


@pytest.mark.parametrize(
    ("prompt", "error", "match"),
    [
        (tuple(range(40)), ResourceError, "40 tokens, the context holds 40"),
        ((1, 64), ConfigError, "prompt token 64 is outside the vocabulary of 64"),
        ((-1,), ConfigError, "prompt token -1"),
    ],
)
def test_impossible_prompts_are_refused(
    noisy: Any, prompt: tuple[int, ...], error: type[Exception], match: str
) -> None:
    loop = DecodeLoop(noisy, context_length=40)
    with pytest.raises(error, match=match):
        next(Generation(loop, {0: _request(prompt)}))
    assert _turn(loop, _request(max_tokens=5)) == _plain(noisy, PROMPT, 5)


@pytest.mark.parametrize(
    "options",
    [
        {"batch": 0},
        {"drafts": 9},
        {"drafts": -1},
        {"context_length": 257},
        {"prefill_rows": 0},
        {"step_rows": 66},
    ],
    ids=lambda o: next(iter(o)),
)
def test_loop_options_out_of_range_are_refused(noisy: Any, options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        DecodeLoop(noisy, **options)
