"""Thinking budgets on the demo checkpoint, which thinks for up to 64 tokens."""

from __future__ import annotations

from typing import Any

import pytest

from selfdraft.runtime.generation import Generation
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import GenerationResult
from selfdraft.runtime.sampling import SamplingParams
from selfdraft.runtime.thinking import LEVELS
from selfdraft.runtime.thinking_record import ThinkingRate, thinking_rates
from selfdraft.runtime.thinking_text import thinking_from_text

PROMPTS = (
    "Tell me a short story.",
    "What is a token?",
    "Plan a day by the sea.",
    "What is the capital of Peru?",
    "Write a poem about rain.",
    "What is speculative decoding?",
    "Make a list of things to pack.",
    "How many bits are in a byte?",
)
CUTS = (4, 8, 16, 32)
"""Budgets below the 64 tokens that the model is told of, so that the cut is seen."""
WRAP_UP = " Enough."


def replies(
    demo: Any, budget: int, *, told: int, temperature: float, drafts: int, num_prompts: int
) -> list[GenerationResult]:
    """Replies of all prompts together; the template tells of ``told`` tokens."""
    thinking = thinking_from_text(demo.tokenizer, budget, wrap_up=WRAP_UP)
    requests = {
        slot: Request(
            prompt_ids=tuple(demo.chat(text, thinking_budget=told)),
            sampling=SamplingParams(temperature=temperature, seed=slot),
            thinking=thinking,
            max_tokens=112,
        )
        for slot, text in enumerate(PROMPTS[:num_prompts])
    }
    loop = DecodeLoop(
        demo.backend,
        batch=len(requests),
        drafts=drafts,
        context_length=256,
        tokenizer=demo.tokenizer,
    )
    generation = Generation(loop, requests)
    list(generation)
    return [generation.results[slot] for slot in requests]


def rates(results: list[GenerationResult]) -> ThinkingRate:
    (rate,) = thinking_rates(r.thinking for r in results if r.thinking)
    assert rate.replies == len(results)
    return rate


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_cut_holds_and_drafts_change_no_token(demo: Any, temperature: float) -> None:
    options: dict[str, Any] = {"told": 64, "temperature": temperature, "num_prompts": 3}
    for budget in (0, 5):
        plain = replies(demo, budget, drafts=0, **options)
        for drafts in (1, 4):
            found = replies(demo, budget, drafts=drafts, **options)
            assert [r.tokens for r in found] == [r.tokens for r in plain]
            assert [r.thinking for r in found] == [r.thinking for r in plain]
        assert (rates(plain).triggered, rates(plain).violated) == (3, 0)
        thought = demo.tokenizer.decode(plain[0].tokens).partition("</think>")[0]
        assert thought.endswith(WRAP_UP) == (budget > 0)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_level_is_violated_and_lower_ones_trigger_more(demo: Any, temperature: float) -> None:
    options: dict[str, Any] = {"temperature": temperature, "drafts": 2, "num_prompts": 8}
    by_level = [rates(replies(demo, level, told=level, **options)) for level in LEVELS]
    by_cut = [rates(replies(demo, cut, told=64, **options)) for cut in CUTS]
    for rate in (*by_level, *by_cut):
        print(
            f"budget {rate.budget}, temperature {rate.temperature:g}: "
            f"triggered {rate.trigger_rate:.2f}, violated {rate.violation_rate:.2f}"
        )
        assert rate.violated == 0
    triggered = [rate.triggered for rate in by_cut]
    assert triggered == sorted(triggered, reverse=True) and triggered[0] == len(PROMPTS)
    # Told of no more than 64 tokens, the model closes its thinking in time.
    assert all(rate.triggered == 0 for rate in by_level if rate.budget > 64)


def test_budget_0_of_the_template_leaves_nothing_to_cut(demo: Any) -> None:
    results = replies(demo, 0, told=0, temperature=0.0, drafts=2, num_prompts=3)
    assert rates(results).triggered == 0
    assert not any(r.thinking.forced_tokens for r in results if r.thinking)
