"""Drawing from sorted candidates equals drawing from the full row, and follows the exact law."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfdraft.errors import ConfigError, DeviceError
from selfdraft.manifest import SamplingDefaults
from selfdraft.runtime.candidates import top_candidates
from selfdraft.runtime.inverse_transform import draw_rank
from selfdraft.runtime.processors import ProcessorChain
from selfdraft.runtime.row_sampler import RowSampler
from selfdraft.runtime.sampling import (
    SamplingLaw,
    SamplingParams,
    filtered_distribution,
    ranking,
    resolve_sampling,
)
from selfdraft.runtime.token_bans import MinTokens
from selfdraft.runtime.uniform import PositionUniform

VOCAB = 200


def _law(
    temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, seed: int = 0
) -> SamplingLaw:
    return SamplingLaw(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)


def _rows(rng: np.random.Generator, count: int, kind: str) -> np.ndarray[Any, Any]:
    """Logit rows: smooth ones, peaked ones, and ones full of ties."""
    rows = rng.standard_normal((count, VOCAB)).astype(np.float32)
    if kind == "peaked":
        return rows * 6
    return np.round(rows * 2) / 2 if kind == "ties" else rows


def _written_out_rank(row: np.ndarray[Any, Any], law: SamplingLaw, uniform: float) -> int:
    """Rank drawn from the full row, in Python floats; mirrors the text of the law."""
    ranked = sorted(range(len(row)), key=lambda token: (-row[token], token))
    logits = [float(row[token]) / law.temperature for token in ranked]
    weights = [math.exp(logit - logits[0]) for logit in logits]
    if law.top_k:
        weights = weights[: law.top_k]
    total, mass, kept = math.fsum(weights), 0.0, 0
    for weight in weights:
        if mass >= law.top_p * total and kept:
            break
        mass, kept = mass + weight, kept + 1
    weights = [w for w in weights[:kept] if w >= law.min_p]
    target, mass = uniform * math.fsum(weights), 0.0
    for rank, weight in enumerate(weights):
        mass += weight
        if mass > target:
            return rank
    return len(weights) - 1


LAWS = [
    _law(),
    _law(temperature=0.3),
    _law(temperature=2.5),
    _law(top_k=5),
    _law(top_k=16),
    _law(top_k=17),
    _law(top_k=1000),
    _law(top_p=0.4),
    _law(top_p=0.99),
    _law(min_p=0.3),
    _law(min_p=0.01),
    _law(temperature=0.7, top_k=40, top_p=0.9, min_p=0.05),
    _law(temperature=1.5, top_k=10, top_p=0.7),
]


@pytest.mark.parametrize("kind", ["smooth", "peaked", "ties"])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_candidates_draw_what_the_full_row_draws(law: SamplingLaw, kind: str) -> None:
    rng = np.random.default_rng(1)
    rows = _rows(rng, 250, kind)
    values, ids = top_candidates(rows, 16)
    sampler = RowSampler(law, vocab_size=VOCAB)
    full = RowSampler(law, vocab_size=VOCAB)
    uniform = PositionUniform(law.seed)
    for position, row in enumerate(rows):
        order = ranking(row)
        token = sampler.draw(values[position], ids[position], position=position, row=HostRow(row))
        from_full = full.draw(row[order], order, position=position, row=NoRow())
        assert token == from_full
        assert token == order[_written_out_rank(row, law, uniform.at(position))]
    assert full.fallbacks == 0
    if 0 < law.top_k <= 16:
        assert sampler.fallbacks == 0


class HostRow:
    """A row that is on the host already."""

    def __init__(self, row: np.ndarray[Any, Any]) -> None:
        self._row = row

    def full(self) -> Any:
        return self._row

    def entries(self, ids: Any) -> Any:
        return self._row[ids]


class NoRow:
    """A row that must not be asked for."""

    def full(self) -> Any:
        raise AssertionError("the full row was fetched")

    entries = full


def test_peaked_rows_are_drawn_without_the_full_row() -> None:
    rows = _rows(np.random.default_rng(2), 500, "peaked")
    values, ids = top_candidates(rows, 64)
    sampler = RowSampler(_law(top_p=0.9), vocab_size=VOCAB)
    for position, row in enumerate(rows):
        sampler.draw(values[position], ids[position], position=position, row=HostRow(row))
    assert 0 < sampler.fallbacks < 100


@settings(max_examples=300, deadline=None)
@given(
    logits=st.lists(st.integers(-6, 6), min_size=1, max_size=12),
    count=st.integers(1, 12),
    temperature=st.sampled_from([0.2, 0.5, 1.0, 3.0]),
    top_k=st.integers(0, 13),
    top_p=st.sampled_from([1e-9, 0.25, 0.5, 0.75, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    uniform=st.one_of(st.floats(0, 1, exclude_max=True), st.just(1 - 2.0**-53)),
)
def test_a_rank_that_candidates_prove_is_the_rank_of_the_full_row(
    logits: list[int],
    count: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    uniform: float,
) -> None:
    row = np.array(logits, dtype=np.float64)
    law = _law(temperature, top_k, top_p, min_p)
    ranked = row[ranking(row)]
    truth = draw_rank(ranked, law, uniform, vocab_size=len(row))
    assert truth is not None
    distribution = filtered_distribution(row, law)
    assert distribution[ranking(row)[truth]] > 0
    normaliser = float(np.exp((row - ranked[0]) / temperature).sum())
    for known in (None, normaliser):
        rank = draw_rank(ranked[:count], law, uniform, vocab_size=len(row), normaliser=known)
        assert rank in (None, truth)


def test_a_draw_at_the_edge_of_a_rank_is_left_to_the_full_row() -> None:
    """The normaliser summed in another order differs in its last bits; it must not decide."""
    rng = np.random.default_rng(5)
    law, undecided = _law(), 0
    for row in rng.standard_normal((300, VOCAB)) * 3:
        ranked = row[ranking(row)]
        weights = np.exp(ranked - ranked[0])
        normaliser, mass = float(np.exp(row - ranked[0]).sum()), np.cumsum(weights)
        edge = float(mass[8] / mass[-1])
        for uniform in (np.nextafter(edge, 0), edge, np.nextafter(edge, 1)):
            truth = draw_rank(ranked, law, float(uniform), vocab_size=VOCAB)
            rank = draw_rank(
                ranked[:16], law, float(uniform), vocab_size=VOCAB, normaliser=normaliser
            )
            assert rank in (None, truth)
            undecided += rank is None
    assert undecided == 900


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_draw_frequencies_follow_the_law(law: SamplingLaw) -> None:
    """A fine grid of uniforms hits each rank in proportion to its probability."""
    row = _rows(np.random.default_rng(4), 1, "ties")[0]
    order = ranking(row)
    grid = (np.arange(4000) + 0.5) / 4000
    ranks = [draw_rank(row[order], law, float(u), vocab_size=VOCAB) for u in grid]
    shares = np.bincount(ranks, minlength=VOCAB) / len(grid)
    np.testing.assert_allclose(shares, filtered_distribution(row, law)[order], atol=1 / 4000)


def test_lower_id_wins_ties_at_rank_k_and_at_the_top_p_cut() -> None:
    row = np.array([1.0, 3.0, 1.0, 1.0])
    by_k = filtered_distribution(row, _law(top_k=2))
    assert by_k[0] > 0 and by_k[2] == by_k[3] == 0
    by_p = filtered_distribution(np.zeros(4), _law(top_p=0.5))
    np.testing.assert_allclose(by_p, [0.5, 0.5, 0, 0])
    assert filtered_distribution(np.zeros(4), _law(temperature=0)).tolist() == [1, 0, 0, 0]


def test_top_candidates_take_the_lower_id_of_equal_values_at_the_last_rank() -> None:
    values, ids = top_candidates(np.array([[2.0, 5.0, 2.0, 2.0, 7.0]]), 3)
    assert values.tolist() == [[7.0, 5.0, 2.0]] and ids.tolist() == [[4, 1, 0]]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=20), st.integers(1, 25))
def test_top_candidates_lead_the_ranking(logits: list[int], count: int) -> None:
    row = np.array(logits, dtype=np.float32)
    _, ids = top_candidates(row[None], count)
    assert ids[0].tolist() == ranking(row)[:count].tolist()


def test_uniforms_depend_on_seed_and_position_only() -> None:
    forward = [PositionUniform(5).at(position) for position in (0, 1, 255, 256, 70_000)]
    backward = PositionUniform(5)
    assert [backward.at(p) for p in (70_000, 256, 255, 1, 0)] == forward[::-1]
    assert all(0 <= number < 1 for number in forward) and len(set(forward)) == 5
    assert PositionUniform(6).at(0) != forward[0]


def test_uniforms_are_uniform() -> None:
    source = PositionUniform(2**64 - 1)
    numbers = np.array([source.at(position) for position in range(20_000)])
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # chi-square, 19 degrees, p = 0.001


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("min_p", -0.1),
        ("min_p", True),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_parameters_out_of_range_are_refused(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=option) as caught:
        SamplingParams(**{option: value})
    assert option in caught.value.hint


def test_none_takes_the_checkpoint_then_greedy() -> None:
    defaults = SamplingDefaults(temperature=0.6, top_k=20)
    law = resolve_sampling(SamplingParams(top_k=5, seed=1), defaults)
    assert law == _law(temperature=0.6, top_k=5, seed=1)
    assert resolve_sampling(SamplingParams(), SamplingDefaults()).greedy
    with pytest.raises(ConfigError, match="top_p"):
        resolve_sampling(SamplingParams(), SamplingDefaults(top_p=2.0))


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_logits_that_are_no_numbers_are_an_error(value: float) -> None:
    sampler = RowSampler(_law(temperature=0), vocab_size=3)
    with pytest.raises(DeviceError, match="position 4"):
        sampler.draw(np.full(3, value), np.arange(3), position=4, row=NoRow())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens_bans_end_tokens_until_enough_are_delivered(temperature: float) -> None:
    row = np.array([9.0, 1.0, 8.0, 0.5])
    original = MinTokens(2, end_ids=[0, 2])
    sampler = RowSampler(_law(temperature), vocab_size=4, chain=ProcessorChain([original]))
    values, ids = top_candidates(row, 2)
    tokens = [
        sampler.draw(values, ids, position=position, row=HostRow(row)) for position in range(4)
    ]
    assert not {0, 2} & set(tokens[:2]) and {0, 2} >= set(tokens[2:])
    assert sampler.fallbacks >= 2
    assert original.active, "the sampler works on a clone"
    assert row.tolist() == [9.0, 1.0, 8.0, 0.5], "the row belongs to the backend"


def test_banning_every_token_is_an_error() -> None:
    sampler = RowSampler(_law(), vocab_size=2, chain=ProcessorChain([MinTokens(1, end_ids=[0, 1])]))
    with pytest.raises(ConfigError, match="every token is banned"):
        sampler.draw(np.ones(2), np.arange(2), position=0, row=HostRow(np.ones(2)))


@pytest.mark.parametrize("temperature", [1e-320, 1e-31, float("nan"), float("inf"), -1.0])
def test_temperature_that_overflows_the_logits_is_refused(temperature: float) -> None:
    with pytest.raises(ConfigError, match="temperature is"):
        SamplingParams(temperature=temperature)
    SamplingParams(temperature=1e-30)
