"""Speculative decoding equals plain decoding on the shipped checkpoints and ONNX Runtime, fp32.

Token for token, in greedy and match mode, whatever the number of drafts, slots and chunk rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.random_drafts import RandomDrafts

from selfdraft.runtime.generation import Generation
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import GenerationResult
from selfdraft.runtime.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
WARM = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=11)
DEPTHS = (1, 2, 3, 4)


def _replies(
    backend: Any,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    drafts: Any,
    batch: int = 1,
    max_tokens: int = 32,
    **loop_options: Any,
) -> list[GenerationResult]:
    """Replies to all prompts, ``batch`` at a time, past the model's own end tokens."""
    longest = max(len(prompt) for prompt in prompts) + max_tokens
    loop_options.setdefault("context_length", longest)
    loop = DecodeLoop(backend, batch=batch, drafts=drafts, **loop_options)
    results: list[GenerationResult] = []
    for first in range(0, len(prompts), batch):
        requests = {
            slot: Request(
                prompt_ids=tuple(prompt), sampling=params, max_tokens=max_tokens, ignore_eos=True
            )
            for slot, prompt in enumerate(prompts[first : first + batch])
        }
        generation = Generation(loop, requests)
        for _ in generation:
            pass
        results += [generation.results[slot] for slot in requests]
    return results


def _tokens(results: Sequence[GenerationResult]) -> list[tuple[int, ...]]:
    return [result.tokens for result in results]


def _rejections(results: Sequence[GenerationResult]) -> np.ndarray[Any, Any]:
    """Drafts that were the first of their chain to be rejected, by position."""
    accepted = np.sum([r.accepted for r in results], axis=0)
    drafted = np.sum([r.drafted for r in results], axis=0)
    reached = np.concatenate([drafted[:1], accepted[:-1] - (drafted[:-1] - drafted[1:])])
    return np.asarray(reached - accepted)


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "match"])
@pytest.mark.parametrize("batch", [1, 3])
def test_speculative_equals_plain_on_shipped_checkpoints(
    shipped: Any, params: SamplingParams, batch: int
) -> None:
    prompts = [[7], [3, 9], *shipped.prompts[:7]]
    plain = _tokens(_replies(shipped.backend, prompts, params, drafts=0))
    rejected = 0
    for drafts in DEPTHS:
        replies = _replies(shipped.backend, prompts, params, drafts=drafts, batch=batch)
        assert _tokens(replies) == plain, f"K = {drafts}"
        rejected += int(_rejections(replies).sum())
    assert rejected > 20


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "match"])
@pytest.mark.parametrize("batch", [1, 3])
def test_any_number_of_drafts_in_any_step_equals_plain(
    shipped: Any, params: SamplingParams, batch: int
) -> None:
    """The head rests, catches up from rows kept on the host, and drafts 0 to 4 tokens at random."""
    prompts = [[7], *shipped.prompts[:5]]
    plain = _tokens(_replies(shipped.backend, prompts, params, drafts=0, max_tokens=48))
    policy = RandomDrafts(4, seed=batch)
    replies = _replies(shipped.backend, prompts, params, drafts=policy, batch=batch, max_tokens=48)
    assert _tokens(replies) == plain
    assert len({plan.drafts for plan in policy.plans}) == 5
    assert sum(sum(reply.accepted) for reply in replies) > 20


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_prefill_chunks_change_no_token(shipped: Any, chunk: int) -> None:
    prompts = shipped.prompts[:4]
    whole = _replies(shipped.backend, prompts, GREEDY, drafts=2, max_tokens=16, prefill_rows=512)
    parts = _replies(shipped.backend, prompts, GREEDY, drafts=2, max_tokens=16, prefill_rows=chunk)
    assert _tokens(parts) == _tokens(whole)
    assert [r.accepted for r in parts] == [r.accepted for r in whole]


@pytest.mark.parametrize("drafts", DEPTHS)
def test_context_is_filled_to_its_last_slot(shipped: Any, drafts: int) -> None:
    prompt, context = shipped.prompts[0], len(shipped.prompts[0]) + 23
    options: dict[str, Any] = {"max_tokens": 500, "context_length": context}
    (plain,) = _replies(shipped.backend, [prompt], GREEDY, drafts=0, **options)
    (reply,) = _replies(shipped.backend, [prompt], GREEDY, drafts=drafts, **options)
    assert reply.tokens == plain.tokens
    assert len(reply.tokens) == 23 and reply.finish_reason == "context"


@pytest.mark.slow
def test_thousand_rejections_and_a_hundred_at_each_position_change_no_token(early: Any) -> None:
    prompts = [[5], [11, 12], *early.prompts]
    plain = {
        mode: _tokens(_replies(early.backend, prompts, params, drafts=0, max_tokens=120))
        for mode, params in (("greedy", GREEDY), ("match", WARM))
    }
    total = 0
    for drafts in DEPTHS:
        at_position = np.zeros(drafts, dtype=int)
        for mode, params in (("greedy", GREEDY), ("match", WARM)):
            for batch, chunk in ((1, 256), (3, 7)):
                replies = _replies(
                    early.backend,
                    prompts,
                    params,
                    drafts=drafts,
                    batch=batch,
                    max_tokens=120,
                    prefill_rows=chunk,
                )
                assert _tokens(replies) == plain[mode], f"{mode}, K = {drafts}, B = {batch}"
                at_position += _rejections(replies)
        assert (at_position >= 100).all(), f"K = {drafts}: {at_position.tolist()} rejections"
        total += int(at_position.sum())
        print(f"K = {drafts}: rejections by position {at_position.tolist()}")
    assert total >= 1000
