"""Adaptive drafting on a simulated clock: the real loop, passes that cost what they are said to."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
from support.clocked_backend import CPU, DEAR, ORIN, Clock, ClockedBackend, Costs, Timeline

from selfdraft.runtime.adaptive.acceptance import AcceptanceEstimate, expected_tokens
from selfdraft.runtime.adaptive.costs import StepCosts
from selfdraft.runtime.adaptive.measure import measure_costs
from selfdraft.runtime.adaptive.policy import AdaptiveDrafts

MOST = 4
EASY, RANDOM = (0.92, 0.85, 0.8, 0.75), (0.05,) * MOST
PHASE = 768
SETTLED = 64
"""Tokens after which a phase counts."""


def _costs(costs: Costs) -> StepCosts:
    return StepCosts([costs.step(drafts) for drafts in range(MOST + 1)])


def _auto(costs: Costs) -> Callable[[Clock], AdaptiveDrafts]:
    return lambda clock: AdaptiveDrafts(_costs(costs), clock=clock)


def _alternating(position: int) -> Sequence[float]:
    """Easy and random text, 64 tokens each."""
    return EASY if position // 64 % 2 else RANDOM


def _workload(position: int) -> Sequence[float]:
    """Easy, random, easy again, then alternating."""
    phases: list[Any] = [EASY, RANDOM, EASY, _alternating]
    phase = phases[min(position // PHASE, 3)]
    return phase(position) if callable(phase) else phase


@pytest.mark.parametrize("costs", [ORIN, CPU], ids=["orin", "cpu"])
def test_auto_keeps_up_with_the_best_fixed_number_in_every_phase(
    tiny: ModuleType, costs: Costs
) -> None:
    num_tokens = 4 * PHASE
    fixed = [Timeline(tiny, costs, drafts, _workload, num_tokens) for drafts in range(MOST + 1)]
    auto = Timeline(tiny, costs, _auto(costs), _workload, num_tokens)
    best_drafts = []
    for start in range(0, num_tokens, PHASE):
        end = start + PHASE - 1
        best = [one.seconds(start + SETTLED, end) for one in fixed]
        best_drafts.append(best.index(min(best)))
        assert auto.seconds(start + SETTLED, end) <= min(best) / 0.97, f"phase at {start}"
        assert auto.seconds(start, end) <= fixed[0].seconds(start, end) / 0.97, f"phase at {start}"
    assert min(best_drafts) == 0 and max(best_drafts) >= 3, "the phases ask for different numbers"


@pytest.mark.parametrize("costs", [ORIN, CPU, DEAR], ids=["orin", "cpu", "dear"])
def test_sweep_of_forced_acceptance_switches_where_the_costs_say(
    tiny: ModuleType, costs: Costs
) -> None:
    """Equal rates at all positions, 0.0 to 1.0; near a tie either number will do."""
    for tenth in range(11):
        rate = tenth / 10
        auto = Timeline(tiny, costs, _auto(costs), lambda _: (rate,) * MOST, 700)  # noqa: B023
        speeds = [
            tokens / costs.step(drafts)
            for drafts, tokens in enumerate(expected_tokens((rate,) * MOST))
        ]
        shares = [auto.share_of(drafts, SETTLED, 699) for drafts in range(MOST + 1)]
        near = [drafts for drafts, speed in enumerate(speeds) if speed >= 0.97 * max(speeds)]
        assert sum(shares[drafts] for drafts in near) > 0.5, f"rate {rate}: {shares}"


def test_costs_decide_where_drafting_begins(tiny: ModuleType) -> None:
    """0.1 below the break-even rate it rests, 0.2 above it drafts."""
    for costs in (ORIN, CPU):
        even = _costs(costs).break_even
        below, above = (
            Timeline(tiny, costs, _auto(costs), lambda _, r=rate: (r,) * MOST, 900)  # type: ignore[misc]
            for rate in (even - 0.1, even + 0.2)
        )
        assert below.share_of(0, SETTLED, 899) > 0.8
        assert above.share_of(0, SETTLED, 899) < 0.2


def test_break_even_rate_gives_the_speed_of_plain_decoding() -> None:
    for costs in (ORIN, CPU, DEAR):
        table = _costs(costs)
        tokens = expected_tokens((table.break_even,) * MOST)
        best = max(tokens[drafts] / costs.step(drafts) for drafts in range(1, MOST + 1))
        assert best == pytest.approx(1 / costs.step(0), rel=1e-4)
    assert StepCosts([1.0, 2.1, 3.2]).break_even > 1


def test_head_that_can_never_pay_is_told() -> None:
    assert _costs(ORIN).pays
    assert not StepCosts([1.0, 1.9, 2.8]).pays
    assert StepCosts([1.0, 1.6]).pays
    assert not StepCosts([1.0]).pays


@pytest.mark.parametrize("batch", [1, 2])
def test_costs_are_measured_as_they_are(tiny: ModuleType, batch: int) -> None:
    clock = Clock()
    backend: Any = ClockedBackend(tiny, clock, CPU)
    measured = measure_costs(backend, batch=batch, most=3, clock=clock)
    assert [measured.of(drafts) for drafts in range(4)] == pytest.approx(
        [CPU.step(drafts) for drafts in range(4)]
    )


def test_first_pass_of_each_kind_is_not_counted(tiny: ModuleType) -> None:
    """Engines set up buffers and kernels then."""
    clock = Clock()

    class Warming(ClockedBackend):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.seen: set[int] = set()

        def run_backbone(self, states: Any, step: Any, input_ids: Any) -> Any:
            if input_ids.shape[1] not in self.seen:
                self.seen.add(input_ids.shape[1])
                clock.now += 50.0
            return super().run_backbone(states, step, input_ids)

    backend: Any = Warming(tiny, clock, ORIN)
    assert measure_costs(backend, batch=1, most=2, clock=clock).of(2) == pytest.approx(ORIN.step(2))


def test_steps_correct_the_measured_costs() -> None:
    """Every step takes twice as long as measured: so do the numbers of drafts that never ran."""
    costs = StepCosts([1.0, 1.5, 2.0])
    for _ in range(100):
        costs.note(1, 3.0)
    assert costs.of(1) == pytest.approx(3.0, rel=0.02)
    assert costs.of(2) == pytest.approx(4.0, rel=0.05)
    costs.note(1, 300.0)
    assert costs.of(1) < 3.2, "one hiccup is no news"


def test_one_number_that_got_dear_does_not_make_the_others_so() -> None:
    costs = StepCosts([1.0, 1.5, 2.0])
    for _ in range(200):
        costs.note(0, 1.0)
        costs.note(2, 4.0)
    assert costs.of(0) == pytest.approx(1.0, rel=0.1)
    assert costs.of(2) == pytest.approx(4.0, rel=0.1)


def test_wrong_measurement_is_mended_by_the_steps(tiny: ModuleType) -> None:
    """Measured as cheap, drafts in truth cost more than they bring: it rests soon."""
    told = StepCosts([1.0, 1.3, 1.6, 1.9, 2.2])
    dear = Costs(target_row=0.5, head=0.5, head_row=0.05)
    auto = Timeline(
        tiny, dear, lambda clock: AdaptiveDrafts(told, clock=clock), lambda _: (0.6,) * MOST, 2000
    )
    assert auto.share_of(0, 1400, 1999) > 0.8


def _chains(estimate: AcceptanceEstimate, count: int, accepted: int, *, rejected: bool) -> None:
    """Steps with as many drafts as were judged."""
    for _ in range(count):
        estimate.note(accepted, rejected=rejected)
        estimate.step(accepted + rejected)


def test_unseen_position_is_taken_to_be_like_the_one_before() -> None:
    estimate = AcceptanceEstimate(3)
    _chains(estimate, 200, 1, rejected=False)
    first, second, third = estimate.rates
    assert 0.95 < first < second < third, "who passed one draft is likelier in an easy text"
    _chains(estimate, 50, 1, rejected=True)
    assert estimate.rates[0] > 0.7 and estimate.rates[1] < 0.15
    _chains(estimate, 600, 1, rejected=False)
    assert estimate.rates[1] > 0.8, "what is no longer looked at is forgotten"


def test_sudden_change_is_believed_at_once() -> None:
    estimate = AcceptanceEstimate(1)
    _chains(estimate, 300, 1, rejected=False)
    _chains(estimate, 1, 0, rejected=True)
    assert estimate.rates[0] > 0.8, "one rejection is no change"
    _chains(estimate, 3, 0, rejected=True)
    assert estimate.rates[0] < 0.3
    _chains(estimate, 4, 1, rejected=False)
    assert estimate.rates[0] > 0.6


@pytest.mark.parametrize("rates", [(0.9, 0.8, 0.6), (0.7, 0.4, 0.4), (0.3, 0.3, 0.3)])
def test_steady_rates_are_found_at_every_position(rates: tuple[float, ...]) -> None:
    estimate, coin = AcceptanceEstimate(3), random.Random(1)
    seen: list[list[float]] = []
    for step in range(3000):
        accepted = 0
        while accepted < 3 and coin.random() < rates[accepted]:
            accepted += 1
        estimate.note(accepted, rejected=accepted < 3)
        estimate.step(3)
        if step >= 500:
            seen.append(estimate.rates)
    means = [sum(one[place] for one in seen) / len(seen) for place in range(3)]
    assert means == pytest.approx(list(rates), abs=0.07)


def test_baseline_is_what_texts_are_expected_to_be_like() -> None:
    told, untold = AcceptanceEstimate(2, prior=(0.9, 0.6)), AcceptanceEstimate(2)
    assert told.rates == pytest.approx([0.87, 0.6], abs=0.06)
    for estimate in (told, untold):
        _chains(estimate, 40, 0, rejected=True)
        estimate.note(1, rejected=False)
    assert told.rates[0] > untold.rates[0]


def test_expected_tokens_count_the_targets_own() -> None:
    assert expected_tokens(()) == [1.0]
    assert expected_tokens((0.5, 0.5)) == [1.0, 1.5, 1.75]
    assert expected_tokens((1.0,) * 3)[-1] == 4


def test_prior_of_a_baseline_is_where_it_starts() -> None:
    costs = _costs(ORIN)
    assert AdaptiveDrafts(costs, prior=(0.95,) * MOST).drafts == MOST
    assert AdaptiveDrafts(costs, prior=(0.4, 0.1, 0.1, 0.1)).drafts == 1


def test_resting_head_is_asked_ever_more_seldom() -> None:
    """Waits of 4, 8, 16, then 32 steps; a hit brings drafts back, two misses end them."""
    policy = AdaptiveDrafts(_costs(ORIN))
    while policy.drafts:
        drafts = policy.plan().drafts
        policy.note_chain(0, rejected=True)
        policy.note_step(drafts, ORIN.step(drafts))
    waits, last = [], 0
    for step in range(1, 130):
        plan = policy.plan()
        assert plan.drafts == 0
        if plan.resync:
            waits.append(step - last)
            last = step
            policy.note_chain(0, rejected=True)
        policy.note_step(0, 1.0)
    assert waits == [4, 8, 16, 32, 32, 32]
    while not policy.plan().resync:
        policy.note_step(0, 1.0)
    policy.note_chain(1, rejected=False)
    policy.note_step(0, 1.0)
    for _ in range(2):
        drafts = policy.plan().drafts
        assert drafts > 0
        policy.note_chain(0, rejected=True)
        policy.note_step(drafts, ORIN.step(drafts))
    assert policy.plan().drafts == 0


def test_rest_ends_by_a_verdict_only() -> None:
    """Belief drifts to the average text with time, but a comparison costs nothing, drafts do."""
    policy = AdaptiveDrafts(StepCosts([1.0, 1.3, 1.6]))
    for _ in range(40):
        policy.note_chain(0, rejected=True)
        policy.note_step(1, 1.3)
    assert policy.drafts == 0
    for _ in range(500):
        policy.note_step(0, 1.0)
    assert policy.speeds()[1] > policy.speeds()[0] and policy.drafts == 0


def test_expectations_of_the_simulation() -> None:
    """The cost tables are as the docstrings say: a row is nearly free, or is not."""
    assert ORIN.step(1) / ORIN.step(0) == pytest.approx(1.235)
    assert DEAR.step(1) > 1.5 and math.isclose(CPU.step(2), 1.66)
