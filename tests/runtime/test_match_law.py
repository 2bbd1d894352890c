"""``match`` verification samples from the target's exact distribution (chi-square, fixed seeds)."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.exact_law import chi_square_excess

from selfdraft.manifest import RopeSpec
from selfdraft.runtime.backend import Step
from selfdraft.runtime.generation import Generation
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.sampling import SamplingParams, filtered_distribution, resolve_sampling
from selfdraft.runtime.verify import Chain, accept_while_equal

VOCAB = 5
PROMPT = (0, 3)
RUNS = 1000
PARAMS = {
    "plain": SamplingParams(temperature=1.3, seed=0),
    "filtered": SamplingParams(temperature=1.5, top_k=4, top_p=0.95, min_p=0.02, seed=0),
}


@pytest.fixture(scope="module")
def toy(tiny: ModuleType) -> Any:
    """One layer, five tokens, a random head."""
    model = tiny.model_spec(
        vocab_size=VOCAB,
        hidden_size=8,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        intermediate_size=8,
        rope=RopeSpec(inv_freq=(1.0, 0.1)),
    )
    return tiny.backend(model, seed=3, context_length=16, candidates=3)


def _target_law(backend: Any, tokens: Sequence[int], params: SamplingParams) -> Any:
    states = backend.allocate(batch=1, capacity=64)
    count = len(tokens)
    step = Step(
        past_len=np.zeros(1, dtype=np.int64),
        row_count=np.array([count]),
        attend_all=np.zeros(1, dtype=np.int64),
        row_index=np.array([[count - 1]]),
    )
    output = backend.run_backbone(states, step, np.array([tokens]))
    law = resolve_sampling(params, backend.manifest.sampling)
    return filtered_distribution(backend.read_rows(output.logits, [(0, 0)])[0], law)


def _exact(backend: Any, params: SamplingParams) -> dict[tuple[int, ...], float]:
    """Probability of the first three tokens together."""
    exact: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        exact = {
            (*tokens, token): mass * share
            for tokens, mass in exact.items()
            for token, share in enumerate(_target_law(backend, PROMPT + tokens, params))
            if mass * share > 0
        }
    return exact


def _sampled(
    backend: Any, params: SamplingParams, verdict: Callable[..., Chain]
) -> Counter[tuple[int, ...]]:
    """First three tokens of runs that differ in the seed alone; two drafts a step."""
    loop = DecodeLoop(backend, drafts=2)
    loop._verdict = verdict
    seen: Counter[tuple[int, ...]] = Counter()
    for seed in range(RUNS):
        loop.reset(0)
        sampling = SamplingParams(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            seed=seed,
        )
        request = Request(prompt_ids=PROMPT, sampling=sampling, max_tokens=4)
        seen[tuple(event.token for event in Generation(loop, {0: request}))[:3]] += 1
    return seen


@pytest.mark.parametrize("name", PARAMS)
def test_match_samples_follow_the_exact_law(toy: Any, name: str) -> None:
    params = PARAMS[name]
    exact = _exact(toy, params)
    assert math.isclose(sum(exact.values()), 1.0)
    assert chi_square_excess(_sampled(toy, params, accept_while_equal), exact) < 1


def _accept_every_draft(
    draw: Callable[[int], int],
    drafts: Sequence[int],
    *,
    position: int,
    ends: Callable[[int], bool],
) -> Chain:
    return Chain([*drafts, draw(len(drafts))], len(drafts))


def _deliver_the_next_rows_token(
    draw: Callable[[int], int],
    drafts: Sequence[int],
    *,
    position: int,
    ends: Callable[[int], bool],
) -> Chain:
    """Right verdict, but a rejected draft is replaced from the row after it."""
    chain = accept_while_equal(draw, drafts, position=position, ends=ends)
    if chain.num_accepted == len(drafts):
        return chain
    return Chain([*chain.tokens[:-1], draw(chain.num_accepted + 1)], chain.num_accepted)


@pytest.mark.parametrize("wrong", [_accept_every_draft, _deliver_the_next_rows_token])
def test_wrong_rules_fail_the_same_check(toy: Any, wrong: Callable[..., Chain]) -> None:
    params = PARAMS["plain"]
    assert chi_square_excess(_sampled(toy, params, wrong), _exact(toy, params)) > 2


def test_the_check_sees_every_outcome(toy: Any) -> None:
    assert len(_exact(toy, PARAMS["plain"])) == len(list(itertools.product(range(VOCAB), repeat=3)))
