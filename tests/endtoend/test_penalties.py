"""Penalties, bans and n-grams count the same tokens with drafts and without, on the early checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from selfdraft.runtime.generation import Generation
from selfdraft.runtime.logit_params import LogitParams
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import GenerationResult
from selfdraft.runtime.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
WARM = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=5)
RULES = {
    "counts": LogitParams(frequency_penalty=0.6, presence_penalty=0.4),
    "repetition": LogitParams(repetition_penalty=1.3),
    "n-grams": LogitParams(no_repeat_ngram_size=3, logit_bias={11: 1.5, 40: -3.0}),
    "everything": LogitParams(
        repetition_penalty=1.15,
        frequency_penalty=-0.2,
        presence_penalty=0.7,
        logit_bias={20: 2.0},
        banned_token_ids=(5, 17, 300),
        no_repeat_ngram_size=4,
    ),
}


def _prompts(early: Any, count: int) -> list[list[int]]:
    """Showcase prompts, whole and cut short at every length, until there are ``count``."""
    found: list[list[int]] = []
    cut = 0
    while len(found) < count:
        found += [prompt[: len(prompt) - cut] for prompt in early.prompts if len(prompt) > cut + 2]
        cut += 1
    return found[:count]


def _replies(early: Any, requests: list[Request], *, drafts: int) -> list[GenerationResult]:
    loop = DecodeLoop(early.backend, drafts=drafts, tokenizer=early.tokenizer, context_length=512)
    results = []
    for request in requests:
        generation = Generation(loop, {0: request})
        list(generation)
        results.append(generation.result)
    return results


def _compared(early: Any, params: SamplingParams, *, count: int) -> int:
    """Rejections over ``count`` prompts whose replies agree for K = 0 and 3."""
    rules = list(RULES.values())
    requests = [
        Request(
            prompt_ids=tuple(prompt),
            sampling=params,
            logits=rules[index % len(rules)],
            min_tokens=10,
            max_tokens=24,
            logprobs=1,
        )
        for index, prompt in enumerate(_prompts(early, count))
    ]
    plain = _replies(early, requests, drafts=0)
    drafted = _replies(early, requests, drafts=3)
    for one, other in zip(plain, drafted, strict=True):
        assert (one.tokens, one.text, one.finish_reason) == (
            other.tokens,
            other.text,
            other.finish_reason,
        )
    # Every step but one that accepted all drafts rejected exactly one.
    return sum(r.steps - r.accepted[-1] for r in drafted)


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "match"])
def test_penalties_are_the_same_with_and_without_drafts(early: Any, params: SamplingParams) -> None:
    assert _compared(early, params, count=8) > 20


@pytest.mark.slow
def test_penalties_hold_over_two_hundred_prompts_and_a_thousand_rejections(early: Any) -> None:
    rejections = [_compared(early, params, count=200) for params in (GREEDY, WARM)]
    print(f"rejections: greedy {rejections[0]}, match {rejections[1]}")
    assert sum(rejections) >= 1000
