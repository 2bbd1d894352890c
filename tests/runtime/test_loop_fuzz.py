"""Any order of starting, stepping, cancelling and continuing gives the tokens of plain decoding."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.hybrid import right_now_and_then, tiny_hybrid
from support.random_drafts import RandomDrafts

from selfdraft.runtime.generation import generate
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.sampling import SamplingParams

CONTEXT = 48
SLOTS = 3
SEED = 4
STOPS = (7, 21)


class LoopMachine(RuleBasedStateMachine):
    """Drives one loop; every delivered token is compared with plain decoding from scratch."""

    backend: Any
    temperature: float

    @initialize(
        drafts=st.integers(0, 4), changing=st.booleans(), chunk=st.sampled_from([1, 3, 7, 64])
    )
    def open_loop(self, drafts: int, changing: bool, chunk: int) -> None:
        self.loop = DecodeLoop(
            self.backend,
            batch=SLOTS,
            drafts=RandomDrafts(drafts, rests=0.7) if changing else drafts,
            context_length=CONTEXT,
            prefill_rows=chunk,
        )
        self.expected: dict[int, list[int]] = {}

    @rule(
        slots=st.sets(st.integers(0, SLOTS - 1), min_size=1),
        kept=st.integers(0, CONTEXT),
        added=st.lists(st.integers(1, 63), min_size=1, max_size=9),
        max_tokens=st.one_of(st.none(), st.integers(1, 12)),
        stopping=st.booleans(),
    )
    def begin(
        self,
        slots: set[int],
        kept: int,
        added: list[int],
        max_tokens: int | None,
        stopping: bool,
    ) -> None:
        requests = {}
        for slot in sorted(slots - set(self.loop.active)):
            prompt = (0, *self.loop.tokens(slot)[1:kept], *added)[: CONTEXT - 1]
            requests[slot] = Request(
                prompt_ids=prompt,
                sampling=SamplingParams(temperature=self.temperature, seed=SEED),
                max_tokens=max_tokens,
                stop_token_ids=STOPS if stopping else (),
            )
            self.expected[slot] = list(self.plain(prompt, max_tokens, STOPS if stopping else ()))
        if requests:
            self.take(self.loop.begin(requests))

    @precondition(lambda self: self.loop.active)
    @rule(count=st.integers(1, 5))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.loop.active:
                self.take(self.loop.step())

    @precondition(lambda self: self.loop.active)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.loop.cancel(data.draw(st.sampled_from(self.loop.active)))

    @rule(slot=st.integers(0, SLOTS - 1))
    def reset(self, slot: int) -> None:
        self.loop.reset(slot)

    def take(self, events: list[Any]) -> None:
        before = set(self.expected)
        for event in events:
            assert event.token == self.expected[event.slot].pop(0)
        for slot in before - set(self.loop.active):
            if self.loop.result(slot).finish_reason != "closed":
                assert not self.expected.pop(slot), "stopped before plain decoding did"

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            while self.loop.active:
                self.take(self.loop.step())

    @classmethod
    @cache
    def plain(
        cls, prompt: tuple[int, ...], max_tokens: int | None, stops: tuple[int, ...]
    ) -> tuple[int, ...]:
        generation = generate(
            cls.backend,
            prompt,
            SamplingParams(temperature=cls.temperature, seed=SEED),
            max_tokens=max_tokens,
            stop_token_ids=stops,
            drafts=0,
            context_length=CONTEXT,
            prefill_rows=64,
        )
        return tuple(event.token for event in generation)


@pytest.mark.parametrize(
    ("temperature", "examples"),
    [
        pytest.param(0.0, 25, id="greedy"),
        pytest.param(1.0, 25, id="match"),
        pytest.param(0.0, 400, id="greedy long", marks=pytest.mark.slow),
        pytest.param(1.0, 400, id="match long", marks=pytest.mark.slow),
    ],
)
def test_any_order_of_operations_equals_plain_decoding(
    tiny: ModuleType, copy_model: ModuleType, temperature: float, examples: int
) -> None:
    backend = copy_model.backend(tiny, noise=0.25, candidates=8)
    machine = type("Machine", (LoopMachine,), {"backend": backend, "temperature": temperature})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


class HybridMachine(LoopMachine):
    """The same on a model with recurrent states; most drafts are right, so that chains are cut anywhere."""

    @initialize(
        drafts=st.integers(0, 4), changing=st.booleans(), chunk=st.sampled_from([1, 3, 7, 64])
    )
    def open_loop(self, drafts: int, changing: bool, chunk: int) -> None:
        super().open_loop(drafts, changing, chunk)
        if drafts:
            right_now_and_then(self.loop, lambda slot: self.expected.get(slot, []))


@pytest.mark.parametrize(
    ("temperature", "examples"),
    [
        pytest.param(0.0, 10, id="greedy"),
        pytest.param(0.0, 300, id="greedy long", marks=pytest.mark.slow),
        pytest.param(1.0, 300, id="match long", marks=pytest.mark.slow),
    ],
)
def test_any_order_of_operations_equals_plain_decoding_of_a_hybrid(
    tiny: ModuleType, temperature: float, examples: int
) -> None:
    backend = tiny_hybrid(tiny, candidates=8)
    machine = type("Machine", (HybridMachine,), {"backend": backend, "temperature": temperature})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
