"""Speculative decoding gives the tokens of plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from selfdraft.manifest import MtpSpec
from selfdraft.runtime.generation import generate_batch
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import GenerationResult
from selfdraft.runtime.sampling import SamplingParams

GREEDY = SamplingParams()
MATCH = SamplingParams(temperature=1.0, seed=7)


def _prompts(lengths: Sequence[int], *, seed: int = 0) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [(0, *(int(t) for t in rng.integers(1, 64, size=length - 1))) for length in lengths]


def _run(
    backend: Any,
    prompts: Sequence[tuple[int, ...]],
    params: SamplingParams = GREEDY,
    *,
    drafts: int,
    max_tokens: int | None = 48,
    prefill_rows: int | None = None,
    context_length: int | None = None,
) -> list[GenerationResult]:
    requests = [
        Request(prompt_ids=prompt, sampling=params, max_tokens=max_tokens) for prompt in prompts
    ]
    generation = generate_batch(
        backend,
        requests,
        drafts=drafts,
        prefill_rows=prefill_rows,
        context_length=context_length,
    )
    events = list(generation)
    results = [generation.results[slot] for slot in range(len(prompts))]
    for slot, result in enumerate(results):
        own = [event for event in events if event.slot == slot]
        assert tuple(event.token for event in own) == result.tokens
        start = len(prompts[slot])
        assert [event.position for event in own] == list(range(start, start + len(own)))
        assert sum(event.drafted for event in own) == sum(result.accepted)
    return results


def _tokens(results: Sequence[GenerationResult]) -> list[tuple[int, ...]]:
    return [result.tokens for result in results]


@pytest.mark.parametrize("params", [GREEDY, MATCH], ids=["greedy", "match"])
@pytest.mark.parametrize("drafts", range(1, 9))
def test_speculative_equals_plain(noisy: Any, drafts: int, params: SamplingParams) -> None:
    prompts = _prompts([5, 9, 17])
    plain = _tokens(_run(noisy, prompts, params, drafts=0))
    assert min(len(set(tokens)) for tokens in plain) > 12, "the text has no variety"
    alone = [_tokens(_run(noisy, [prompt], params, drafts=drafts))[0] for prompt in prompts]
    assert alone == plain
    together = _run(noisy, prompts, params, drafts=drafts)
    assert _tokens(together) == plain
    assert sum(result.accepted[0] for result in together) > 10
    assert any(result.accepted[0] < result.drafted[0] for result in together)


@pytest.mark.parametrize("drafts", [1, 4])
def test_random_head_that_is_nearly_always_wrong_changes_nothing(
    tiny: ModuleType, drafts: int
) -> None:
    backend = tiny.backend()
    prompts = [(1, 2, 3, 4, 5), (9, 8)]
    assert _tokens(_run(backend, prompts, drafts=drafts)) == _tokens(
        _run(backend, prompts, drafts=0)
    )


@pytest.mark.parametrize("drafts", [1, 3])
def test_trimmed_draft_vocabulary_changes_no_token(
    tiny: ModuleType, copy_model: ModuleType, drafts: int
) -> None:
    trimmed = copy_model.backend(tiny, mtp={"draft_vocab_size": 40})
    prompts = _prompts([5, 9, 17])
    results = _run(trimmed, prompts, drafts=drafts)
    assert _tokens(results) == _tokens(_run(copy_model.backend(tiny), prompts, drafts=0))
    for result in results:
        assert 0 < result.accepted[0] < result.drafted[0], "tokens outside cannot be drafted"


@pytest.mark.parametrize(
    "variant",
    [
        {"tied_head": True, "qk_norm": True, "qkv_bias": False},
        {"mtp": MtpSpec(concat="embedding_first", tap="post_norm", mask_first_embedding=True)},
    ],
    ids=["tied head, normed queries", "masked first embedding"],
)
def test_other_layouts_change_nothing_either(tiny: ModuleType, variant: dict[str, Any]) -> None:
    backend = tiny.backend(tiny.model_spec(**variant))
    prompts = _prompts([5, 1])
    speculative = _run(backend, prompts, MATCH, drafts=2)
    assert _tokens(speculative) == _tokens(_run(backend, prompts, MATCH, drafts=0))


@pytest.mark.parametrize("params", [GREEDY, MATCH], ids=["greedy", "match"])
@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
def test_chunk_size_changes_nothing(noisy: Any, chunk: int, params: SamplingParams) -> None:
    prompts = _prompts([30, 1, 14], seed=3)
    whole = _run(noisy, prompts, params, drafts=2, prefill_rows=64)
    chunked = _run(noisy, prompts, params, drafts=2, prefill_rows=chunk)
    assert _tokens(chunked) == _tokens(whole)
    assert [r.accepted for r in chunked] == [r.accepted for r in whole]


@pytest.mark.parametrize("drafts", [0, 1, 3])
@pytest.mark.parametrize("length", [1, 2])
def test_shortest_prompts(noisy: Any, length: int, drafts: int) -> None:
    prompts = [(0,) if length == 1 else (0, token) for token in range(1, 4)]
    plain = _run(noisy, prompts, drafts=0)
    assert _tokens(_run(noisy, prompts, drafts=drafts, prefill_rows=1)) == _tokens(plain)


@pytest.mark.parametrize("drafts", [0, 1, 2, 3, 4, 8])
def test_context_is_filled_to_its_last_token(noisy: Any, drafts: int) -> None:
    prompts = _prompts([5, 11, 39], seed=5)
    results = _run(noisy, prompts, drafts=drafts, max_tokens=None, context_length=40)
    plain = _run(noisy, prompts, drafts=0, max_tokens=None, context_length=40)
    assert _tokens(results) == _tokens(plain)
    assert [len(result.tokens) for result in results] == [35, 29, 1]
    assert {result.finish_reason for result in results} == {"context"}


@pytest.mark.parametrize("drafts", [1, 2, 4])
def test_drafts_are_capped_near_the_end(noisy: Any, drafts: int) -> None:
    (prompt,) = _prompts([6])
    plain = _tokens(_run(noisy, [prompt], drafts=0))[0]
    for left in range(1, drafts + 3):
        (by_context,) = _run(
            noisy, [prompt], drafts=drafts, max_tokens=None, context_length=6 + left
        )
        (by_length,) = _run(noisy, [prompt], drafts=drafts, max_tokens=left)
        assert by_context.tokens == by_length.tokens == plain[:left]
        assert (by_context.finish_reason, by_length.finish_reason) == ("context", "length")
        assert by_length.drafted[drafts - 1] == 0 or left > drafts


def test_sampled_text_depends_on_the_seed_only(noisy: Any) -> None:
    prompts = _prompts([8], seed=2)
    by_depth = {
        drafts: _tokens(_run(noisy, prompts, MATCH, drafts=drafts, max_tokens=120))
        for drafts in range(5)
    }
    assert all(tokens == by_depth[0] for tokens in by_depth.values())
    other = SamplingParams(temperature=1.0, seed=8)
    assert _tokens(_run(noisy, prompts, other, drafts=2, max_tokens=120)) != by_depth[0]


@pytest.mark.slow
@pytest.mark.parametrize("params", [GREEDY, MATCH], ids=["greedy", "match"])
@pytest.mark.parametrize("drafts", [1, 2, 3, 4])
def test_thousand_rejections_change_no_token(
    noisy: Any, drafts: int, params: SamplingParams
) -> None:
    rejected = np.zeros(drafts, dtype=int)
    for round_ in range(200):
        prompts = _prompts([1 + round_ % 5, 12, 23], seed=round_)
        results = _run(noisy, prompts, params, drafts=drafts, max_tokens=200)
        plain = _run(noisy, prompts, params, drafts=0, max_tokens=200)
        assert _tokens(results) == _tokens(plain)
        for result in results:
            reached = np.minimum(result.drafted, (result.steps, *result.accepted[:-1]))
            rejected += reached - np.array(result.accepted)
        if rejected.sum() >= 1000 and rejected.min() >= 100:
            break
    assert rejected.sum() >= 1000 and rejected.min() >= 100, rejected
