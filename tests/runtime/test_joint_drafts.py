"""Drafting of several slots on a simulated clock: steps cost by their slots and rows."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from support.clocked_backend import Clock, ClockedBackend, Costs

from selfdraft.runtime.adaptive.joint import MOST_SKIPPED, JointCosts, JointDrafts
from selfdraft.runtime.adaptive.measure import measure_keep_up
from selfdraft.runtime.adaptive.policy import StepPlan
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request

MOST, SLOTS = 4, 4
EASY, RANDOM = (0.92, 0.85, 0.8, 0.75), (0.03,) * MOST
FAR = 4000
"""Prompts of this length or more are random text, shorter ones easy text."""
STEPS = 400
WIDE = Costs(target=1.0, target_row=0.02, head=0.12, head_row=0.004)
"""Seconds of a pass: a fixed part, and one for each row of each slot behind the first."""


class WideBackend(ClockedBackend):
    """A pass costs by the slots that it spans times their rows, and may span a part of them."""

    def narrow(self, states: Any, *, first: int, count: int) -> Any:
        return type(states)(batch=count, capacity=states.capacity)

    def run_backbone(self, states: Any, step: Any, input_ids: Any) -> Any:
        batch, rows = input_ids.shape
        self.clock.now += (batch - 1) * rows * self.costs.target_row
        return super().run_backbone(states, step, input_ids)

    def run_mtp(self, states: Any, step: Any, input_ids: Any, hidden: Any) -> Any:
        batch, rows = hidden.shape[:2]
        self.clock.now += (batch - 1) * rows * self.costs.head_row
        return super().run_mtp(states, step, input_ids, hidden)


def joint(clock: Clock) -> JointDrafts:
    """With the costs as they are at widths 1, 2 and 4."""

    def seconds(width: int, drafts: int) -> float:
        target = WIDE.target + (width * (drafts + 1) - 1) * WIDE.target_row
        if not drafts:
            return target
        head = WIDE.head + (width * (drafts + 1) - 1) * WIDE.head_row
        return target + head + (drafts - 1) * (WIDE.head + (width - 1) * WIDE.head_row)

    costs = {width: [seconds(width, k) for k in range(MOST + 1)] for width in (1, 2, 4)}
    return JointDrafts(JointCosts(costs), clock=clock)


def speed(tiny: ModuleType, drafts: Any, prompts: list[int]) -> tuple[float, list[float]]:
    """Tokens a second of all slots, and mean drafts of each slot."""
    clock = Clock()
    backend: Any = WideBackend(tiny, clock, WIDE, context_length=8192)
    loop = DecodeLoop(
        backend,
        batch=SLOTS,
        drafts=drafts(clock) if callable(drafts) else drafts,
        forced_acceptance=lambda position: RANDOM if position >= FAR else EASY,
    )
    for slot, length in enumerate(prompts):
        loop.admit(slot, loop.prepare(Request(prompt_ids=(1,) * length, max_tokens=3000)))
        while loop.is_busy(slot) and slot not in loop.active:
            loop.fill(slot)
    start, tokens = clock.now, 0
    for _ in range(STEPS):
        tokens += len(loop.step())
    results = [loop.result(slot) for slot in range(len(prompts))]
    drafted = [sum(result.drafted) / result.steps for result in results]
    return tokens / (clock.now - start), drafted


TEXTS = {
    "random": lambda width: [FAR + 7 * slot for slot in range(width)],
    "easy": lambda width: [40 + 7 * slot for slot in range(width)],
    "mixed": lambda width: [40 + FAR * (slot % 2) for slot in range(width)],
}


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("text", TEXTS)
def test_speed_of_all_slots_is_near_the_best_fixed_number_and_never_below_plain(
    tiny: ModuleType, text: str, width: int
) -> None:
    prompts = TEXTS[text](width)
    fixed = [speed(tiny, drafts, prompts)[0] for drafts in range(MOST + 1)]
    found, _ = speed(tiny, joint, prompts)
    assert found >= 0.97 * fixed[0], "plain batching"
    assert found >= 0.95 * max(fixed), "the best fixed number"
    assert (max(fixed) > 1.3 * fixed[0]) == (text != "random"), "the texts differ"


def test_each_slot_drafts_as_far_as_its_own_text_allows(tiny: ModuleType) -> None:
    _, drafted = speed(tiny, joint, TEXTS["mixed"](4))
    easy, other = drafted[::2], drafted[1::2]
    assert min(easy) > 2 * max(other), drafted


def test_a_number_is_chosen_anew_when_slots_come_and_go() -> None:
    """At one slot a draft is nearly free, at four it costs too much for what it brings."""
    policy = JointDrafts(JointCosts({1: [1.0, 1.1], 4: [1.0, 1.9]}))
    for slot in range(4):
        policy.begin(slot)
    for _ in range(3):
        assert policy.plan((0,), width=1).drafts == 1
        assert policy.plan((0, 1, 2, 3), width=4).drafts == 0


def test_a_new_request_begins_with_what_those_before_it_had() -> None:
    policy = JointDrafts(JointCosts({1: [1.0, 1.4]}))
    policy.begin(0)
    assert policy.plan((0,), width=1).drafts == 1
    for _ in range(40):
        policy.note_chain(0, 0, rejected=True)
    policy.begin(0)
    assert policy.plan((0,), width=1).drafts == 0


def resting(
    keep_up: float, *, width: int = 4, steps: int = 200
) -> tuple[JointDrafts, list[StepPlan]]:
    """A policy on random text, and what it planned; every comparison is a miss."""
    costs = {1: [1.0, 1.3], width: [1.0, 1.3]}
    policy = JointDrafts(JointCosts(costs, keep_up={1: 0.001, width: keep_up}))
    plans = []
    for slot in range(width):
        policy.begin(slot)
    for _ in range(steps):
        plan = policy.plan(tuple(range(width)), width=width)
        for slot in range(width):
            if (plan.drafts or plan.resync) and slot not in plan.given_up:
                policy.note_chain(slot, 0, rejected=True)
        policy.note_step(plan.drafts, 1.0 + 0.3 * plan.drafts)
        plans.append(plan)
    return policy, plans


def test_head_that_costs_much_to_keep_up_gives_hopeless_requests_up() -> None:
    policy, plans = resting(0.06)
    assert set(plans[-1].given_up) == {0, 1, 2, 3} and plans[-1].drafts == 0
    look_at(policy, 2)
    assert set(policy.plan((0, 1, 2, 3), width=4).given_up) == {0, 1, 3}
    policy.note_chain(2, 1, rejected=False)
    for _ in range(8):
        policy.note_chain(2, 1, rejected=False)
    plan = policy.plan((0, 1, 2, 3), width=4)
    assert plan.drafts == 0, "one slot of four does not pay for a pass of the head"
    look_at(policy, 3)
    for slot in (2, 3) * 8:
        policy.note_chain(slot, 1, rejected=False)
    plan = policy.plan((0, 1, 2, 3), width=4)
    assert plan.drafts == 1 and plan.depth_of(0) == 0 and plan.depth_of(2) == 1


def look_at(policy: JointDrafts, slot: int) -> None:
    """Requests in ``slot`` until the head looks at one."""
    for _ in range(MOST_SKIPPED + 1):
        policy.begin(slot)
        if slot not in policy.plan((0, 1, 2, 3), width=4).given_up:
            return
    raise AssertionError("it looks at no request any more")


def test_of_many_hopeless_requests_few_are_looked_at_until_one_is_worth_drafting() -> None:
    policy = JointDrafts(JointCosts({1: [1.0, 1.3]}, keep_up={1: 0.06}))

    def request(accepted: int) -> tuple[bool, bool]:
        """One whose verdicts are all alike: whether the head looks at it, and follows it to its end."""
        policy.begin(0)
        plans = []
        for _ in range(200):
            plan = policy.plan((0,), width=1)
            plans.append(0 not in plan.given_up)
            if plans[-1] and (plan.drafts or plan.resync):
                policy.note_chain(0, accepted, rejected=not accepted)
            policy.note_step(plan.drafts, 1.0 + 0.3 * plan.drafts)
        return plans[0], plans[-1]

    hopeless = [request(0) for _ in range(40)]
    assert not any(followed for _, followed in hopeless)
    looked_at = [index for index, (looked, _) in enumerate(hopeless) if looked]
    assert looked_at == [0, 2, 6, 14, 22, 30, 38], "1, 3, and then 7 between two of them"
    followed = [followed for _, followed in (request(1) for _ in range(2 * MOST_SKIPPED))]
    first = followed.index(True)
    assert first <= MOST_SKIPPED and all(followed[first:]), "and every one from then on"


def test_head_that_costs_little_keeps_up_for_good() -> None:
    _, plans = resting(0.01)
    assert not any(plan.given_up for plan in plans)
    assert sum(plan.resync for plan in plans[-64:]) == 2


def test_costs_of_keeping_up_are_measured(tiny: ModuleType) -> None:
    clock = Clock()
    backend: Any = WideBackend(tiny, clock, WIDE)
    rows = 4 * 32
    wanted = (WIDE.head + (rows - 1) * WIDE.head_row) / 32
    # WIDE counts the rows of the first slot in its parent class.
    assert measure_keep_up(backend, batch=4, clock=clock) == pytest.approx(wanted)


def test_costs_between_measured_widths_lie_between() -> None:
    costs = JointCosts({1: [1.0, 2.0], 4: [4.0, 5.0]})
    assert costs.of(3).seconds == (3.0, 4.0)
    assert costs.of(9).seconds == (4.0, 5.0)
    assert JointCosts({4: [1.0, 2.0]}).of(2).seconds == (1.0, 2.0)
