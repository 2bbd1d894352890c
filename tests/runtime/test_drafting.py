"""Any number of drafts in any step: no token changes, and the head's cache is what it should be."""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.random_drafts import RandomDrafts
from support.scripted_backend import ScriptedBackend

from selfdraft.runtime import kept_hidden
from selfdraft.runtime.adaptive.policy import AllSlots, StepPlan
from selfdraft.runtime.generation import Generation
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import GenerationResult
from selfdraft.runtime.sampling import SamplingParams

GREEDY = SamplingParams()
MATCH = SamplingParams(temperature=1.0, seed=7)
REJECTION = SamplingParams(temperature=1.0, seed=7, verification="rejection")
PROMPTS = [(0, 5, 9, 2, 7), (0, 3), (0, *range(8, 40))]


class Scheduled:
    """Plans one after the other, then the last one for ever."""

    when_drawn = 1

    def __init__(self, *plans: StepPlan) -> None:
        self.most, self.clock = max(plan.drafts for plan in plans), lambda: 0.0
        self._plans = list(plans)
        self.chains: list[tuple[int, bool]] = []
        self.steps: list[int] = []

    def plan(self) -> StepPlan:
        return self._plans.pop(0) if len(self._plans) > 1 else self._plans[0]

    def note_chain(self, accepted: int, *, rejected: bool) -> None:
        self.chains.append((accepted, rejected))

    def note_step(self, drafts: int, seconds: float) -> None:
        self.steps.append(drafts)


REST, COMPARE = StepPlan(0, False), StepPlan(0, True)


def _run(
    backend: Any, drafts: Any, params: SamplingParams = GREEDY, *, batch: int = 1, **options: Any
) -> list[GenerationResult]:
    loop = DecodeLoop(backend, batch=batch, drafts=drafts, **options)
    results: list[GenerationResult] = []
    for first in range(0, len(PROMPTS), batch):
        requests = {
            slot: Request(prompt_ids=prompt, sampling=params, max_tokens=90)
            for slot, prompt in enumerate(PROMPTS[first : first + batch])
        }
        generation = Generation(loop, requests)
        for _ in generation:
            pass
        results += [generation.results[slot] for slot in requests]
    return results


def _tokens(results: list[GenerationResult]) -> list[tuple[int, ...]]:
    return [result.tokens for result in results]


@pytest.mark.parametrize("params", [GREEDY, MATCH], ids=["greedy", "match"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_random_changes_of_depth_equal_plain(
    noisy: Any, batch: int, params: SamplingParams, seed: int
) -> None:
    plain = _tokens(_run(noisy, 0, params))
    policy = RandomDrafts(4, seed=seed)
    results = _run(noisy, policy, params, batch=batch)
    assert _tokens(results) == plain
    assert len({plan.drafts for plan in policy.plans}) == 5
    assert sum(sum(result.accepted) for result in results) > 20


@pytest.mark.parametrize("params", [GREEDY, MATCH], ids=["greedy", "match"])
@pytest.mark.parametrize("kind", ["infllm_v2", "mean_std"])
def test_random_changes_of_depth_equal_plain_on_sparse_models(
    tiny: ModuleType,
    copy_model: ModuleType,
    sparse_model: ModuleType,
    kind: str,
    params: SamplingParams,
) -> None:
    backend = sparse_model.backend(tiny, copy_model, selector=kind, kv="int8")
    prompt = (0, *(int(t) for t in np.random.default_rng(3).integers(1, 60, size=700)))
    request = Request(prompt_ids=prompt, sampling=params, max_tokens=60)

    def reply(drafts: Any) -> tuple[int, ...]:
        return tuple(e.token for e in Generation(DecodeLoop(backend, drafts=drafts), {0: request}))

    assert reply(RandomDrafts(3)) == reply(0)


def test_scripted_caches_hold_every_row_whatever_the_depth(tiny: ModuleType) -> None:
    """The scripted head refuses a cache that is not the text up to its row."""
    backend = ScriptedBackend(tiny, lambda h: (3 * h[-1] + len(h)) % 64, vocab_size=64, errors=0.3)
    plain = _tokens(_run(backend, 0))
    for seed in range(4):
        for batch in (1, 2):
            assert _tokens(_run(backend, RandomDrafts(3, seed=seed), batch=batch)) == plain


def test_turns_cuts_and_joins_between_rests_equal_plain(noisy: Any) -> None:
    """Requests begin, are given up and go on while rows of others wait for the head."""
    policy = RandomDrafts(3, seed=5, rests=0.8)
    loop = DecodeLoop(noisy, batch=2, drafts=policy, prefill_rows=5)
    rng = np.random.default_rng(1)
    for turn in range(24):
        slot = turn % 2
        if slot in loop.active:
            loop.cut(slot, int(rng.integers(0, 9)))
        prompt = (0, *loop.tokens(slot)[1:], *(int(t) for t in rng.integers(1, 60, size=4)))[-60:]
        prompt = (0, *prompt[1:])
        loop.begin({slot: Request(prompt_ids=prompt, max_tokens=24)})
        for _ in range(int(rng.integers(1, 14))):
            if loop.active:
                loop.step()
        got = loop.result(slot).tokens
        with Generation(
            DecodeLoop(noisy, drafts=0), {0: Request(prompt_ids=prompt, max_tokens=24)}
        ) as g:
            assert got == tuple(event.token for event in g)[: len(got)]


def test_rows_kept_on_the_host_fill_the_cache_as_a_prefill_does(noisy: Any) -> None:
    """20 steps at rest, then one with drafts: both caches equal those of a fresh prefill."""
    loop = DecodeLoop(noisy, drafts=Scheduled(*[REST] * 20, StepPlan(2, True)))
    loop.begin({0: Request(prompt_ids=PROMPTS[0], max_tokens=60)})
    for _ in range(20):
        loop.step()
    waiting = loop._slots.cached[0] - loop._slots.drafter_cached[0]
    assert waiting == 20
    loop.step()
    length = loop._slots.drafter_cached[0]
    assert length == len(PROMPTS[0]) + 20
    fresh = DecodeLoop(noisy, drafts=1)
    fresh.begin({0: Request(prompt_ids=loop.tokens(0)[: length + 1], max_tokens=2)})
    fresh._drafting.settle()  # type: ignore[union-attr]
    lengths = {"backbone": 0, "mtp": int(length)}
    ours, theirs = (noisy.export_states(x._states, slot=0, lengths=lengths) for x in (loop, fresh))
    for name in ("mtp.k_cache_0", "mtp.v_cache_0"):
        assert ours[name].size
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6, atol=1e-6)


def test_drafts_after_a_rest_are_as_good_as_without_one(
    tiny: ModuleType, copy_model: ModuleType
) -> None:
    """A head that is always right stays right; rows that were lost would show as rejections."""
    backend = copy_model.backend(tiny)
    plans = [
        *[REST] * 7,
        StepPlan(3, True),
        *[REST] * 40,
        StepPlan(2, True),
        REST,
        StepPlan(4, True),
    ]
    policy = Scheduled(*plans)
    (reply, *_) = _run(backend, policy)
    assert all(not rejected for _, rejected in policy.chains)
    assert reply.accepted == reply.drafted


def test_the_head_rests_and_catches_up_when_its_rows_are_full(
    noisy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = DecodeLoop(noisy, drafts=Scheduled(REST, StepPlan(1, True)))
    policy = Scheduled(REST)
    loop._drafting._policy = AllSlots(policy)  # type: ignore[union-attr]
    passes: list[int] = []
    inner = loop._drafting.head.catch_up  # type: ignore[union-attr]

    def counted(rows: Any, slots: Any) -> Any:
        passes.append(rows.num_rows)
        return inner(rows, slots)

    monkeypatch.setattr(loop._drafting.head, "catch_up", counted)  # type: ignore[union-attr]
    loop.begin({0: Request(prompt_ids=PROMPTS[0], max_tokens=100)})
    for _ in range(1 + 2 * kept_hidden.MOST_ROWS):
        loop.step()
    # The prompt's last rows at once, then a pass for every 32 steps.
    assert passes == [len(PROMPTS[0]), kept_hidden.MOST_ROWS, kept_hidden.MOST_ROWS]
    assert len(policy.chains) == 3, "each pass gives one draft to compare"


def test_compared_drafts_and_verdicts_reach_the_policy(tiny: ModuleType) -> None:
    """A head without errors is told right, one that always errs wrong; in both kinds of steps."""
    for errors, hit in ((0.0, True), (1.0, False)):
        backend = ScriptedBackend(tiny, lambda h: (h[-1] + 1) % 16, errors=errors)
        policy = Scheduled(COMPARE, REST, StepPlan(2, True), COMPARE)
        loop = DecodeLoop(backend, drafts=policy)
        loop.begin({0: Request(prompt_ids=(0, 5), max_tokens=50)})
        for _ in range(4):
            loop.step()
        one = (int(hit), not hit)
        assert policy.chains == [one, ((2, False) if hit else (0, True)), one]
        assert policy.steps == [0, 0, 2, 0]


def test_chain_that_ends_a_reply_is_no_rejection(tiny: ModuleType) -> None:
    """Drafts behind an accepted end token were never judged."""
    backend = ScriptedBackend(tiny, lambda h: (h[-1] + 1) % 16, eos_ids=(9,))
    policy = Scheduled(StepPlan(4, True))
    loop = DecodeLoop(backend, drafts=policy)
    loop.begin({0: Request(prompt_ids=(0, 6), max_tokens=50)})
    while loop.active:
        loop.step()
    assert loop.result(0).tokens == (7, 8, 9)
    assert policy.chains == [(2, False)]


def test_drawn_drafts_keep_their_number(noisy: Any) -> None:
    """In ``rejection`` the drafts are part of what a seed repeats: the policy is not asked."""
    policies = [RandomDrafts(3, seed=seed) for seed in range(2)]
    replies = [_tokens(_run(noisy, policy, REJECTION)) for policy in policies]
    assert replies[0] == replies[1] == _tokens(_run(noisy, 1, REJECTION))
    assert all(not policy.plans and not policy.chains for policy in policies)


def test_failed_step_leaves_the_loop_ready(noisy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = DecodeLoop(noisy, drafts=Scheduled(*[REST] * 5, StepPlan(2, True)))
    loop.begin({0: Request(prompt_ids=PROMPTS[0], max_tokens=40)})
    for _ in range(4):
        loop.step()
    with monkeypatch.context() as patch, contextlib.suppress(RuntimeError):
        patch.setattr(noisy, "run_backbone", _fails)
        loop.step()
    assert not loop.active
    tokens = tuple(
        e.token for e in Generation(loop, {0: Request(prompt_ids=PROMPTS[2], max_tokens=40)})
    )
    plain = DecodeLoop(noisy, drafts=0)
    assert tokens == tuple(
        e.token for e in Generation(plain, {0: Request(prompt_ids=PROMPTS[2], max_tokens=40)})
    )


def _fails(*_args: Any) -> Any:
    raise RuntimeError("the engine is gone")
