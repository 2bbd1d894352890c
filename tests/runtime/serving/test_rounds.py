"""Rounds of the scheduler on a simulated clock: gaps, fairness, time-outs, errors, and room."""

from __future__ import annotations

import dataclasses
import random
from itertools import pairwise
from typing import Any

import pytest
import support.tiny_model as tiny
from support.clocked_backend import Clock, ClockedBackend, Costs
from support.serving import Alone, Client, check, requests, run_schedule

from selfdraft.errors import DeviceError
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import TokenEvent
from selfdraft.runtime.serving.events import Finished, Overloaded, TimedOut
from selfdraft.runtime.serving.options import ServingOptions
from selfdraft.runtime.serving.scheduler import Scheduler

COSTS = Costs(target=0.030, target_row=0.001, head=0.004, head_row=0.0001)
ANY_MEMORY = 1 << 40


class Timed:
    """A scheduler on a clock that moves with every pass; when each token came, by client."""

    def __init__(self, *, batch: int = 2, drafts: int = 0, **options: Any) -> None:
        self.clock = Clock()
        backend: Any = ClockedBackend(tiny, self.clock, COSTS)  # type: ignore[arg-type]
        loop = DecodeLoop(backend, batch=batch, drafts=drafts, prefill_rows=256)
        self.scheduler = Scheduler(
            loop, ServingOptions(**options), clock=self.clock, available=lambda: ANY_MEMORY
        )
        self.times: dict[int, list[float]] = {}
        self.ends: dict[int, Finished] = {}

    def submit(self, length: int, *, max_tokens: int = 500, timeout_s: float | None = None) -> Any:
        request = Request(prompt_ids=(1,) * length, max_tokens=max_tokens, ignore_eos=True)
        return self.scheduler.submit(request, on_event=print, timeout_s=timeout_s)

    def step(self) -> None:
        for ticket, event in self.scheduler.step():
            if isinstance(event, TokenEvent):
                self.times.setdefault(ticket.number, []).append(self.clock.now)
            else:
                assert ticket.number not in self.ends
                self.ends[ticket.number] = event

    def gaps(self, number: int) -> list[float]:
        times = self.times[number]
        return [after - before for before, after in pairwise(times)]


@pytest.mark.parametrize("target_ms", [80.0, 150.0, 300.0])
def test_a_running_stream_never_waits_longer_than_the_target(target_ms: float) -> None:
    served = Timed(target_gap_ms=target_ms)
    first = served.submit(8).number
    while len(served.times.get(first, ())) < 5:
        served.step()
    second = served.submit(1500).number
    while second not in served.times:
        served.step()
    gaps = served.gaps(first)
    assert max(gaps) <= target_ms / 1e3 * 1.02 + COSTS.target + 64 * COSTS.target_row * (
        target_ms < 130
    ), "the first chunk is cut before anything is known"
    assert max(gaps[10:]) <= target_ms / 1e3 * 1.02
    if target_ms >= 150:
        assert max(gaps[10:]) > target_ms / 1e3 * 0.75, "and the gap is made use of"


def test_without_running_streams_a_prompt_is_computed_in_whole_chunks() -> None:
    served = Timed()
    number = served.submit(512).number
    served.step()
    assert served.clock.now == pytest.approx(COSTS.target + 255 * COSTS.target_row)
    served.step()
    assert len(served.times[number]) == 2, "the last chunk gives a token, and the step another one"


def test_prompts_take_turns_so_that_a_long_one_blocks_no_short_one() -> None:
    served = Timed(batch=3)
    long, short = served.submit(4000), served.submit(300)
    for _ in range(5):
        served.step()
    assert short.number in served.times and long.number not in served.times


def test_slots_go_to_those_who_wait_longest() -> None:
    served = Timed(batch=2)
    numbers = [served.submit(16, max_tokens=3 + index % 2).number for index in range(9)]
    while served.scheduler.has_work:
        served.step()
    began = [served.times[number][0] for number in numbers]
    assert began == sorted(began)
    assert all(end.outcome == "done" for end in served.ends.values()) and len(served.ends) == 9


def test_a_request_that_waits_too_long_is_given_up_and_the_others_go_on() -> None:
    served = Timed(batch=1, queue_timeout_s=1.0)
    running, waiting = served.submit(8, max_tokens=100), served.submit(8)
    while served.scheduler.has_work:
        served.step()
    end = served.ends[waiting.number]
    assert end.outcome == "timed_out" and isinstance(end.error, TimedOut) and end.result is None
    assert 1.0 <= end.timing.total_s < 1.1
    assert served.ends[running.number].outcome == "done"


def test_a_reply_that_takes_too_long_ends_with_what_it_has() -> None:
    served = Timed(batch=2, request_timeout_s=1.0)
    late, longer = served.submit(8), served.submit(8, max_tokens=60, timeout_s=10.0)
    while served.scheduler.has_work:
        served.step()
    end = served.ends[late.number]
    assert end.outcome == "timed_out" and end.result is not None
    assert len(end.result.tokens) == len(served.times[late.number]) > 10
    assert end.result.finish_reason == "closed"
    assert served.ends[longer.number].outcome == "done"


def test_times_of_a_request_are_on_its_record() -> None:
    served = Timed(batch=1)
    served.submit(8, max_tokens=20)
    second = served.submit(8, max_tokens=20)
    while served.scheduler.has_work:
        served.step()
    timing = served.ends[second.number].timing
    assert timing.first_token_s is not None
    assert 0 < timing.waited_s < timing.first_token_s < timing.total_s
    assert timing.first_token_s == pytest.approx(served.times[second.number][0])


class Faulty:
    """A backend some of whose passes fail."""

    def __init__(self, inner: Any, rng: random.Random, *, share: float) -> None:
        self._inner, self._rng, self._share = inner, rng, share

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run_backbone(self, *args: Any) -> Any:
        self._fail("backbone")
        return self._inner.run_backbone(*args)

    def run_mtp(self, *args: Any) -> Any:
        self._fail("mtp")
        return self._inner.run_mtp(*args)

    def narrow(self, *args: Any, **options: Any) -> Any:
        return self._inner.narrow(*args, **options)

    def _fail(self, graph: str) -> None:
        if self._rng.random() < self._share:
            raise DeviceError(f"{graph} failed", hint="planted")


@pytest.mark.parametrize("seed", range(10))
def test_errors_end_the_requests_of_their_step_and_leak_no_slot(seed: int) -> None:
    rng, sound = random.Random(seed), tiny.backend(context_length=96)
    faulty = Faulty(sound, rng, share=0.04)
    loop = DecodeLoop(faulty, batch=3, drafts=2, context_length=96, prefill_rows=7)  # type: ignore[arg-type]
    scheduler = Scheduler(loop, ServingOptions())
    asked = requests(rng, 12, vocab_size=64, context=96)
    clients = run_schedule(scheduler, asked, rng, cancels=0.0)
    alone = Alone(sound, context_length=96)
    outcomes = [client.end.outcome for client in clients if client.end]
    assert len(outcomes) == 12 and {"failed", "done"} >= set(outcomes)
    for client in clients:
        assert client.end is not None
        wanted = alone(client.request)
        if client.end.outcome == "failed":
            assert isinstance(client.end.error, DeviceError)
            assert client.tokens == wanted[: len(client.tokens)]
        else:
            assert client.tokens == wanted
    assert not any(loop.is_busy(slot) for slot in range(3))
    faulty._share = 0.0
    again = run_schedule(scheduler, asked, rng, cancels=0.0)
    check(again, alone)


def test_errors_do_occur_in_these_schedules() -> None:
    rng = random.Random(0)
    faulty = Faulty(tiny.backend(context_length=96), rng, share=0.04)
    loop = DecodeLoop(faulty, batch=3, drafts=2, context_length=96, prefill_rows=7)  # type: ignore[arg-type]
    scheduler = Scheduler(loop, ServingOptions())
    run_schedule(scheduler, requests(rng, 30, vocab_size=64, context=96), rng, cancels=0.0)
    assert 2 < scheduler.snapshot().finished["failed"] < 30


def test_memory_that_caches_may_come_to_need_is_asked_for_before() -> None:
    free = [10 << 20]
    loop = DecodeLoop(tiny.backend(context_length=256), batch=2)
    scheduler = Scheduler(
        loop, ServingOptions(memory_floor_bytes=10 << 20), available=lambda: free[0]
    )
    asked = Request(prompt_ids=(1, 2, 3), max_tokens=20)
    with pytest.raises(Overloaded, match="MiB"):
        scheduler.submit(asked, on_event=print)
    free[0] += 2 * loop.state_bytes
    scheduler.submit(asked, on_event=print)
    with pytest.raises(Overloaded):
        free[0] = (10 << 20) + loop.state_bytes // 8
        scheduler.submit(dataclasses.replace(asked, max_tokens=250), on_event=print)


def test_tokens_that_wait_are_limited_too() -> None:
    scheduler = Scheduler(
        DecodeLoop(tiny.backend(), batch=1), ServingOptions(max_waiting_tokens=100)
    )
    asked = Request(prompt_ids=(1,) * 60, max_tokens=2)
    for _ in range(2):
        scheduler.submit(asked, on_event=print)
    with pytest.raises(Overloaded, match="120 tokens"):
        scheduler.submit(asked, on_event=print)


def test_a_free_slot_that_shares_the_prefix_is_reused() -> None:
    backend = tiny.backend(context_length=256)
    alone = Alone(backend, context_length=256)
    loop = DecodeLoop(backend, batch=3, drafts=1)
    scheduler = Scheduler(loop, ServingOptions())
    prompts = [tuple(range(start, start + 50)) for start in (1, 5, 9)]
    firsts = [Client(Request(prompt_ids=prompt, max_tokens=5)) for prompt in prompts]
    _drive(scheduler, firsts)
    nexts = [
        Client(Request(prompt_ids=(*prompt, *first.tokens, 3), max_tokens=5))
        for prompt, first in zip(prompts, firsts, strict=True)
    ]
    _drive(scheduler, nexts)
    check([*firsts, *nexts], alone)
    for client in nexts:
        assert client.end is not None and client.end.result is not None
        assert client.end.result.reused_tokens >= 50


@pytest.mark.parametrize("drafts", [0, 2])
def test_a_prefix_that_a_busy_slot_holds_is_copied(drafts: int) -> None:
    backend = tiny.backend(context_length=256)
    alone = Alone(backend, context_length=256)
    loop = DecodeLoop(backend, batch=2, drafts=drafts)
    scheduler = Scheduler(loop, ServingOptions())
    shared = tuple(range(1, 61))
    busy = Client(Request(prompt_ids=(*shared, 9), max_tokens=60))
    scheduler.submit(busy.request, on_event=busy)
    for _ in range(12):
        _hand_out(scheduler)
    joined = Client(Request(prompt_ids=(*shared, 4, 5), max_tokens=20))
    scheduler.submit(joined.request, on_event=joined)
    while scheduler.has_work:
        _hand_out(scheduler)
    check([busy, joined], alone)
    assert busy.slots != joined.slots
    assert joined.end is not None and joined.end.result is not None
    assert joined.end.result.reused_tokens == 60 - (drafts > 0)


def _drive(scheduler: Scheduler, clients: list[Client]) -> None:
    for client in clients:
        scheduler.submit(client.request, on_event=client)
    while scheduler.has_work:
        _hand_out(scheduler)


def _hand_out(scheduler: Scheduler) -> None:
    for ticket, event in scheduler.step():
        ticket.on_event(event)
