"""Sampled replies of the whole loop follow the target's exact law, ``match`` and ``rejection`` alike.

Chi-square, fixed seeds; the sampler alone: test_exact_laws.py.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.exact_law import chi_square_excess

from selfdraft.manifest import MtpSpec, RopeSpec
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
    return _toy(tiny)


def _toy(tiny: ModuleType, *, draft_vocab: int | None = None) -> Any:
    model = tiny.model_spec(
        mtp=MtpSpec(concat="hidden_first", tap="pre_norm", draft_vocab_size=draft_vocab),
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
    backend: Any, params: SamplingParams, verdict: Callable[..., Chain], *, runs: int = RUNS
) -> Counter[tuple[int, ...]]:
    """First three tokens of runs that differ in the seed alone; two drafts a step."""
    loop = DecodeLoop(backend, drafts=2)
    loop._judge.verdict = verdict
    seen: Counter[tuple[int, ...]] = Counter()
    for seed in range(runs):
        loop.reset(0)
        sampling = dataclasses.replace(params, seed=seed)
        request = Request(prompt_ids=PROMPT, sampling=sampling, max_tokens=4)
        seen[tuple(event.token for event in Generation(loop, {0: request}))[:3]] += 1
    return seen


@pytest.mark.parametrize("name", PARAMS)
def test_match_samples_follow_the_exact_law(toy: Any, name: str) -> None:
    params = PARAMS[name]
    exact = _exact(toy, params)
    assert math.isclose(sum(exact.values()), 1.0)
    assert chi_square_excess(_sampled(toy, params, accept_while_equal), exact) < 1


@pytest.mark.parametrize(("name", "draft_vocab"), [("plain", None), ("filtered", 3)])
def test_rejection_samples_follow_the_exact_law(
    tiny: ModuleType, name: str, draft_vocab: int | None
) -> None:
    """Also where the head knows three of the five tokens only."""
    backend = _toy(tiny, draft_vocab=draft_vocab)
    params = dataclasses.replace(PARAMS[name], verification="rejection")
    seen = _sampled(backend, params, accept_while_equal, runs=400)
    assert chi_square_excess(seen, _exact(backend, params)) < 1


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


def test_slots_of_one_loop_may_verify_in_different_modes(noisy: Any) -> None:
    """Each says what it says alone; a rejection run depends on its seed and its own drafts only."""
    prompts = [(0, 5, 9, 2), (0, 7), (0, 11, 3)]
    modes = [
        SamplingParams(),
        SamplingParams(temperature=1.0, seed=5),
        SamplingParams(temperature=1.0, seed=6, verification="rejection"),
    ]
    requests = {
        slot: Request(prompt_ids=prompt, sampling=params, max_tokens=40)
        for slot, (prompt, params) in enumerate(zip(prompts, modes, strict=True))
    }
    for drafts in (0, 1, 3):
        together = Generation(DecodeLoop(noisy, batch=3, drafts=drafts), requests)
        list(together)
        for slot, request in requests.items():
            alone = Generation(DecodeLoop(noisy, drafts=drafts), {0: request})
            list(alone)
            assert together.results[slot].tokens == alone.result.tokens
            assert together.results[slot].accepted == alone.result.accepted
        modes_found = [together.results[slot].verification for slot in range(3)]
        assert modes_found == ["greedy", "match", "rejection"]
        if drafts:
            assert all(together.results[slot].accepted[0] > 0 for slot in range(3))
