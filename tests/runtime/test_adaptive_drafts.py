"""Adaptive drafting on a simulated clock: the real loop, passes that cost what they are said to."""

from __future__ import annotations

import math
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


def test_unseen_position_is_taken_to_be_like_the_one_before() -> None:
    estimate = AcceptanceEstimate(3)
    for _ in range(200):
        estimate.note(1, rejected=False)
    first, second, third = estimate.rates
    assert first > 0.95 and second == pytest.approx(first) and third == pytest.approx(first)
    for _ in range(50):
        estimate.note(1, rejected=True)
    assert estimate.rates[1] < 0.1
    for _ in range(600):
        estimate.note(1, rejected=False)
        estimate.fade(1)
    assert estimate.rates[1] > 0.5, "what is no longer looked at is forgotten"


def test_sudden_change_is_believed_at_once() -> None:
    estimate = AcceptanceEstimate(1)
    for _ in range(300):
        estimate.note(1, rejected=False)
    for _ in range(4):
        estimate.note(0, rejected=True)
    assert estimate.rates[0] < 0.65
    for _ in range(8):
        estimate.note(1, rejected=False)
    assert estimate.rates[0] > 0.6


def test_expected_tokens_count_the_targets_own() -> None:
    assert expected_tokens(()) == [1.0]
    assert expected_tokens((0.5, 0.5)) == [1.0, 1.5, 1.75]
    assert expected_tokens((1.0,) * 3)[-1] == 4


def test_prior_of_a_baseline_is_where_it_starts() -> None:
    costs = _costs(ORIN)
    assert AdaptiveDrafts(costs, prior=(0.95,) * MOST).drafts == MOST
    assert AdaptiveDrafts(costs, prior=(0.4, 0.1, 0.1, 0.1)).drafts == 1


def test_resting_head_is_asked_ever_more_seldom() -> None:
    """Waits of 8, 16, then 32 steps; a hit is followed by real drafts until the odds decide."""
    policy = AdaptiveDrafts(_costs(ORIN))
    while policy.drafts:
        policy.plan()
        policy.note_chain(0, rejected=True)
        policy.note_step(1, ORIN.step(1))
    waits, last = [], 0
    for step in range(1, 140):
        plan = policy.plan()
        assert plan.drafts == 0
        if plan.resync:
            waits.append(step - last)
            last = step
            policy.note_chain(0, rejected=True)
        policy.note_step(0, 1.0)
    assert waits == [8, 16, 32, 32, 32]
    while not policy.plan().resync:
        policy.note_step(0, 1.0)
    policy.note_chain(1, rejected=False)
    assert policy.plan().drafts == 1 and policy.drafts == 0
    policy.note_chain(0, rejected=True)
    policy.note_chain(0, rejected=True)
    assert policy.plan().drafts == 0, "two misses outweigh a hit"


def test_expectations_of_the_simulation() -> None:
    """The cost tables are as the docstrings say: a row is nearly free, or is not."""
    assert ORIN.step(1) / ORIN.step(0) == pytest.approx(1.235)
    assert DEAR.step(1) > 1.5 and math.isclose(CPU.step(2), 1.66)
