"""Which request runs in which slot, and when: the part of a service that knows no threads."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from selfdraft.errors import ConfigError
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.memory import available_bytes, peak_rss_bytes
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import TokenEvent
from selfdraft.runtime.serving.events import (
    Closing,
    Finished,
    Outcome,
    Overloaded,
    ServiceEvent,
    TimedOut,
)
from selfdraft.runtime.serving.options import ServingOptions
from selfdraft.runtime.serving.snapshot import ServiceSnapshot
from selfdraft.runtime.serving.ticket import OnEvent, Ticket


class Delivery(NamedTuple):
    """One event on its way to the ticket's ``on_event``."""

    ticket: Ticket
    event: ServiceEvent


class Scheduler:
    """Runs requests in the slots of ``loop``: they join and leave between steps.

    ``submit`` may be called from any thread; ``step`` and everything that it does belong to one.
    ``clock``: monotonic seconds.
    """

    def __init__(
        self,
        loop: DecodeLoop,
        options: ServingOptions | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = loop
        self.options = options or ServingOptions()
        self.clock = clock
        self._lock = threading.Lock()
        """Guards what ``submit`` and ``snapshot`` touch from other threads."""
        self._waiting: deque[Ticket] = deque()
        self._running: dict[int, Ticket] = {}
        self._numbers = 0
        self._closing = False
        self._finished: Counter[Outcome] = Counter()
        self._refused = self._generated = self._prompt = self._reused = self._steps = 0
        self._step_s: float | None = None

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would do anything."""
        return bool(self._waiting or self._running)

    @property
    def closing(self) -> bool:
        """No new request is taken in."""
        return self._closing

    def submit(
        self,
        request: Request,
        *,
        on_event: OnEvent,
        timeout_s: float | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> Ticket:
        """Queue ``request``. ``timeout_s``: from now to its end; None: the options' time.

        Raises ``Overloaded`` where there is no room for it now, ``Closing`` after ``close``, and
        ``ConfigError`` or ``ResourceError`` for a request that can never run.
        """
        if timeout_s is not None and not timeout_s > 0:
            raise ConfigError(f"timeout_s is {timeout_s}", hint="give a number of seconds above 0")
        self._loop.prepare(request)
        if timeout_s is None:
            timeout_s = self.options.request_timeout_s
        with self._lock:
            if self._closing:
                raise Closing
            self._check_room(request)
            self._numbers += 1
            ticket = Ticket(
                self._numbers,
                request,
                on_event=on_event,
                submitted_at=self.clock(),
                timeout_s=timeout_s,
                wake=wake,
            )
            self._waiting.append(ticket)
            return ticket

    def close(self) -> None:
        """Take no new requests."""
        with self._lock:
            self._closing = True

    def step(self) -> list[Delivery]:
        """Give up what is cancelled or late, let requests join, and run one step of those in slots.

        An error of a step ends the requests that ran in it, and is told to each of them.
        """
        deliveries = [*self._give_up()]
        while self._waiting and len(self._running) < self._loop.batch:
            deliveries += self._join()
        if self._loop.active:
            deliveries += self._decode()
        return deliveries

    def cancel_all(self) -> list[Delivery]:
        """End every request, those in the queue too."""
        for ticket in [*self._waiting, *self._running.values()]:
            ticket.cancelled = True
        return [*self._give_up()]

    def snapshot(self, *, alive: bool = True) -> ServiceSnapshot:
        """Numbers of now; from any thread."""
        loop = self._loop
        with self._lock:
            waiting, running = list(self._waiting), dict(self._running)
        cached = sum(len(loop.tokens(slot)) for slot in running)
        return ServiceSnapshot(
            slots=loop.batch,
            running=len(running),
            prefilling=sum(ticket.first_token_at is None for ticket in running.values()),
            waiting=len(waiting),
            waiting_tokens=sum(ticket.num_tokens for ticket in waiting),
            context_length=loop.context_length,
            cached_tokens=cached,
            cache_use=cached / (loop.batch * loop.context_length),
            state_bytes=loop.state_bytes,
            peak_rss_bytes=peak_rss_bytes(),
            available_bytes=available_bytes(),
            prompt_tokens=self._prompt,
            reused_tokens=self._reused,
            generated_tokens=self._generated,
            steps=self._steps,
            finished=dict(self._finished),
            refused=self._refused,
            step_ms=None if self._step_s is None else 1e3 * self._step_s,
            closing=self._closing,
            alive=alive,
            telemetry=loop.telemetry.snapshot() if loop.telemetry else None,
        )

    def _check_room(self, request: Request) -> None:
        options, free = self.options, self._loop.batch - len(self._running)
        problem = None
        if len(self._waiting) >= options.max_waiting + free:
            problem = f"{len(self._waiting)} requests wait already"
        elif options.max_waiting_tokens is not None:
            tokens = len(request.prompt_ids) + sum(ticket.num_tokens for ticket in self._waiting)
            if self._waiting and tokens > options.max_waiting_tokens:
                problem = f"{tokens} tokens of prompts would wait"
        if problem is not None:
            self._refused += 1
            raise Overloaded(problem, retry_after_s=self._retry_after_s())

    def _retry_after_s(self) -> float:
        """A guess of when a place in the queue comes free."""
        return 1.0

    def _give_up(self) -> Iterator[Delivery]:
        now = self.clock()
        with self._lock:
            waiting = list(self._waiting)
        for ticket in waiting:
            late = self._lateness(ticket, now)
            if ticket.cancelled or late:
                with self._lock:
                    self._waiting.remove(ticket)
                yield self._given_up(ticket, late)
        for slot, ticket in list(self._running.items()):
            late = self._lateness(ticket, now)
            if ticket.cancelled or late:
                self._loop.cancel(slot)
                yield self._given_up(ticket, late)

    def _given_up(self, ticket: Ticket, late: TimedOut | None) -> Delivery:
        if ticket.cancelled or late is None:
            return self._finish(ticket, "cancelled")
        return self._finish(ticket, "timed_out", late)

    def _lateness(self, ticket: Ticket, now: float) -> TimedOut | None:
        passed, longest = now - ticket.submitted_at, self.options.queue_timeout_s
        if ticket.timeout_s is not None and passed >= ticket.timeout_s:
            return TimedOut(f"the request took {passed:.1f} s, it may take {ticket.timeout_s:g} s")
        if ticket.started_at is None and longest is not None and passed >= longest:
            return TimedOut(f"the request waited {passed:.1f} s for a slot")
        return None

    def _join(self) -> Iterator[Delivery]:
        with self._lock:
            ticket = self._waiting.popleft()
            slot = next(s for s in range(self._loop.batch) if s not in self._running)
            self._running[slot] = ticket
            ticket.slot, ticket.started_at = slot, self.clock()
            self._prompt += ticket.num_tokens
        with self._failing([ticket]) as failures:
            yield from self._take(self._loop.begin({slot: ticket.request}))
        yield from failures
        if not ticket.finished:
            self._reused += self._loop.result(slot).reused_tokens

    def _decode(self) -> Iterator[Delivery]:
        started = self.clock()
        with self._failing([self._running[slot] for slot in self._loop.active]) as failures:
            yield from self._take(self._loop.step())
        yield from failures
        seconds = self.clock() - started
        self._steps += 1
        self._step_s = seconds if self._step_s is None else 0.9 * self._step_s + 0.1 * seconds

    def _take(self, events: list[TokenEvent]) -> Iterator[Delivery]:
        """Events of a step, and the ends that come with them."""
        now = self.clock()
        slots = {event.slot for event in events} | (self._running.keys() - set(self._loop.active))
        for event in events:
            ticket = self._running[event.slot]
            self._generated += 1
            if ticket.first_token_at is None:
                ticket.first_token_at = now
            yield Delivery(ticket, event)
        for slot in sorted(slots - set(self._loop.active)):
            yield self._finish(self._running[slot], "done")

    @contextmanager
    def _failing(self, tickets: list[Ticket]) -> Iterator[list[Delivery]]:
        """Turn an error into the end of ``tickets``; the list given is filled with these."""
        failures: list[Delivery] = []
        try:
            yield failures
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends these requests only
            failures += [self._finish(t, "failed", error) for t in tickets if not t.finished]

    def _finish(self, ticket: Ticket, outcome: Outcome, error: Exception | None = None) -> Delivery:
        """The last event of ``ticket``; its slot is free from now on."""
        result = None
        with self._lock:
            if ticket.slot is not None:
                result = self._loop.result(ticket.slot)
                del self._running[ticket.slot]
            ticket.finished = True
            self._finished[outcome] += 1
        timing = ticket.timing(self.clock())
        return Delivery(
            ticket, Finished(outcome=outcome, result=result, error=error, timing=timing)
        )
