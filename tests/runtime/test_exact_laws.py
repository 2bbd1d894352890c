"""All three modes follow the exact law of a reply, under every filter and penalty; wrong rules do not.

The production sampler, drafts and verdict on toy tables (tests/support/exact_law.py).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from support.exact_law import END, Sampled, TableRow, Toy, chi_square_excess, exact_law, toy

from selfdraft.runtime.distribution import Distribution, distribution_of_ranks
from selfdraft.runtime.logit_params import LogitParams
from selfdraft.runtime.row_sampler import RowSampler
from selfdraft.runtime.sampling import SamplingLaw, SamplingParams
from selfdraft.runtime.verify import Chain, accept_while_equal

LENGTH = 3
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "warm": {"sampling": SamplingParams(temperature=1.7, seed=3)},
    "cool": {"sampling": SamplingParams(temperature=0.6, seed=4)},
    "top-k": {"sampling": SamplingParams(temperature=1.2, top_k=2, seed=5)},
    "top-k past the candidates": {"sampling": SamplingParams(temperature=1.2, top_k=4, seed=5)},
    "top-p": {"sampling": SamplingParams(temperature=1.2, top_p=0.8, seed=6)},
    "hot top-p": {"sampling": SamplingParams(temperature=2.5, top_p=0.6, seed=6)},
    "min-p": {"sampling": SamplingParams(temperature=1.2, min_p=0.15, seed=7)},
    "all filters": {
        "sampling": SamplingParams(temperature=1.4, top_k=4, top_p=0.9, min_p=0.1, seed=8)
    },
    "repetition": {"logits": LogitParams(repetition_penalty=1.6)},
    "raising repetition": {"logits": LogitParams(repetition_penalty=0.6)},
    "frequency": {"logits": LogitParams(frequency_penalty=0.9)},
    "presence": {"logits": LogitParams(presence_penalty=-1.1)},
    "bias": {"logits": LogitParams(logit_bias={2: 1.5, 1: -2.0})},
    "banned": {"logits": LogitParams(banned_token_ids=(1,))},
    "allowed": {"logits": LogitParams(allowed_token_ids=(0, 2))},
    "ngram": {"logits": LogitParams(no_repeat_ngram_size=2)},
    "min tokens": {"min_tokens": 2},
    "everything": {
        "sampling": SamplingParams(temperature=1.3, top_k=5, top_p=0.95, min_p=0.05, seed=9),
        "logits": LogitParams(
            repetition_penalty=1.3,
            frequency_penalty=0.4,
            presence_penalty=-0.3,
            logit_bias={2: 0.7},
            no_repeat_ngram_size=3,
        ),
        "min_tokens": 1,
    },
}
MODES = ("match", "rejection")


def _case(name: str, mode: str, *, vocab_size: int = 5, **options: Any) -> Toy:
    given = CASES[name] | options
    sampling = given.pop("sampling", SamplingParams(temperature=1.0, seed=1))
    return toy(vocab_size, sampling=dataclasses.replace(sampling, verification=mode), **given)


def _excess(case: Toy, *, drafts: int, trials: int, **options: Any) -> float:
    sampled = Sampled(case, drafts=drafts, **options)
    return chi_square_excess(sampled.count(trials, length=LENGTH), exact_law(case, LENGTH))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_replies_follow_the_exact_law(name: str, mode: str) -> None:
    assert _excess(_case(name, mode), drafts=2, trials=500) < 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("index", "name"), enumerate(CASES))
def test_two_hundred_thousand_draws_follow_the_exact_law(index: int, name: str, mode: str) -> None:
    """23,000 replies of 3 tokens, none of which ends early, for K = 1, 2 and 3: 207,000 draws a case."""
    vocab_size = (3, 5, 8)[index % 3]
    for drafts in (1, 2, 3):
        case = _case(name, mode, vocab_size=vocab_size, min_tokens=LENGTH)
        assert _excess(case, drafts=drafts, trials=23_000) < 1


@pytest.mark.parametrize("drafts", [1, 3])
@pytest.mark.parametrize("name", ["plain", "all filters", "everything"])
def test_trimmed_draft_vocabulary_changes_no_law(name: str, drafts: int) -> None:
    case = _case(name, "rejection", draft_ids=(1, 3))
    assert _excess(case, drafts=drafts, trials=500) < 1


@pytest.mark.parametrize("name", CASES)
def test_match_gives_the_tokens_of_plain_decoding(name: str) -> None:
    for seed in range(15):
        case = _case(name, "match")
        case = dataclasses.replace(case, sampling=dataclasses.replace(case.sampling, seed=seed))
        plain = Sampled(case, drafts=0).count(3, length=6)
        for drafts in (1, 3):
            assert Sampled(case, drafts=drafts).count(3, length=6) == plain


@pytest.mark.parametrize("name", [name for name in CASES if "sampling" not in CASES[name]])
def test_greedy_gives_the_likeliest_reply(name: str) -> None:
    greedy = SamplingParams(temperature=0.0, verification="greedy")
    case = toy(5, **(CASES[name] | {"sampling": greedy}))
    (expected,) = exact_law(case, LENGTH)
    for drafts in range(4):
        assert set(Sampled(case, drafts=drafts).count(1, length=LENGTH)) == {expected}


def test_drawn_drafts_are_accepted_as_often_as_both_laws_overlap() -> None:
    """Accepted with probability sum(min(p, q)): more often than the likeliest draft here."""
    case = _case("warm", "rejection")
    sampled = Sampled(case, drafts=1)
    p, q = (_softmax(table[case.prompt[-1]], 1.7) for table in (case.target, case.draft))
    accepted = 0
    for trial in range(2000):
        drafts, laws = sampled.propose(list(case.prompt), 8 * trial, 1)
        np.testing.assert_allclose([laws[0].of(t) for t in range(5)], q, atol=1e-12)
        values, ids = sampled._target[case.prompt[-1]]
        token = sampled.sampler.draw_against(
            values,
            ids,
            position=8 * trial,
            row=TableRow(case.target[case.prompt[-1]]),
            draft=drafts[0],
            draft_law=laws[0],
        )
        accepted += token == drafts[0]
    overlap = np.minimum(p, q).sum()
    assert abs(accepted / 2000 - overlap) < 4 * (overlap * (1 - overlap) / 2000) ** 0.5


def _softmax(row: Any, temperature: float) -> Any:
    weights = np.exp((row.astype(np.float64) - row.max()) / temperature)
    return weights / weights.sum()


# Rules that are wrong, each as it was found in the wild (facts: fault classes C).


class _ArgmaxAcceptance(Sampled):
    """Accepts a drawn draft where it is the target's likeliest token, at a temperature above 0."""

    def step(self, text: list[int], position: int, depth: int) -> list[int]:
        drafts, _ = self.propose(text, position, depth)
        last = [text[-1], *drafts]

        def draw(row: int) -> int:
            values, ids = self._target[last[row]]
            drawn = self.sampler.draw(
                values, ids, position=position + row, row=TableRow(self._case.target[last[row]])
            )
            if row < len(drafts) and drafts[row] == ids[0]:
                return drafts[row]
            return drawn

        return list(accept_while_equal(draw, drafts, position=position, ends=END.__eq__).tokens)


class _SoftmaxLawOfGreedyDrafts(Sampled):
    """Drafts the likeliest token and tests it as if it had been drawn."""

    def propose(self, text: list[int], position: int, depth: int) -> tuple[list[int], list[Any]]:
        drafts: list[int] = []
        laws = []
        for _ in range(depth):
            values, ids = self._head[(drafts or text)[-1]]
            laws.append(distribution_of_ranks(values, ids, self.sampler.law, vocab_size=len(ids)))
            drafts.append(int(ids[0]))
        return drafts, laws


class _FiltersBeforeTemperature(Sampled):
    """Cuts by top-p at temperature 1, then warms what is left."""

    def __init__(self, case: Toy, **options: Any) -> None:
        shares = np.exp(case.target) / np.exp(case.target).sum(axis=1, keepdims=True)
        order = np.argsort(-shares, axis=1)
        ranked = np.take_along_axis(shares, order, axis=1)
        gone = np.cumsum(ranked, axis=1) - ranked >= (case.sampling.top_p or 1.0)
        target = case.target.copy()
        np.put_along_axis(
            target, order, np.where(gone, -np.inf, np.take_along_axis(target, order, 1)), 1
        )
        plain = dataclasses.replace(case.sampling, top_p=1.0)
        super().__init__(dataclasses.replace(case, target=target, sampling=plain), **options)


def _bonus_after_rejection(
    draw: Callable[[int], int],
    drafts: Sequence[int],
    *,
    position: int,
    ends: Callable[[int], bool],
) -> Chain:
    """Puts the next row's token behind the replacement of a rejected draft."""
    chain = accept_while_equal(draw, drafts, position=position, ends=ends)
    if chain.num_accepted == len(drafts) or END in chain.tokens:
        return chain
    return Chain([*chain.tokens, draw(chain.num_accepted + 1)], chain.num_accepted)


@pytest.mark.parametrize(
    ("wrong", "name", "options"),
    [
        (_ArgmaxAcceptance, "warm", {}),
        (_SoftmaxLawOfGreedyDrafts, "warm", {}),
        (_FiltersBeforeTemperature, "hot top-p", {}),
        (Sampled, "warm", {"verdict": _bonus_after_rejection}),
    ],
    ids=["argmax acceptance", "softmax q for greedy drafts", "filters in another order", "bonus"],
)
def test_wrong_rules_are_caught(wrong: type[Sampled], name: str, options: dict[str, Any]) -> None:
    case = _case(name, "rejection")
    seen: Counter[tuple[int, ...]] = Counter()
    for reply, count in wrong(case, drafts=2, **options).count(2500, length=LENGTH).items():
        seen[reply[:LENGTH]] += count
    assert chi_square_excess(seen, exact_law(case, LENGTH)) > 2


def test_residual_without_clamp_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def unclamped(self: Distribution, other: Distribution, uniform: float) -> int:
        left = np.abs(self._minus(other))
        return self._token(int(np.searchsorted(np.cumsum(left / left.sum()), uniform)))

    case = _case("warm", "rejection")
    case = dataclasses.replace(case, draft=-case.target)  # a head that errs much
    assert _excess(case, drafts=2, trials=1000) < 1
    monkeypatch.setattr(Distribution, "draw_residual", unclamped)
    assert _excess(case, drafts=2, trials=1000) > 2


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-53])
def test_draft_that_the_target_cannot_say_never_passes_and_a_sure_one_always_does(
    monkeypatch: pytest.MonkeyPatch, uniform: float
) -> None:
    law = SamplingLaw(temperature=1.0, top_k=1, top_p=1.0, min_p=0.0, seed=0)
    sampler = RowSampler(law, vocab_size=3)
    monkeypatch.setattr(sampler._uniform, "at", lambda *_: uniform)
    draft_law = Distribution(np.array([0, 1]), np.array([0.25, 0.75]))
    row = np.array([0.0, 3.0, 1.0])
    for draft in (0, 1):
        token = sampler.draw_against(
            row[[1, 2]],
            np.array([1, 2]),
            position=0,
            row=TableRow(row),
            draft=draft,
            draft_law=draft_law,
        )
        assert token == 1
