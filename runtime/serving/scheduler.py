"""Which request runs in which slot, and when: the part of a service that knows no threads.

A round gives up what is cancelled or late, lets waiting requests join free slots in the order they
came, computes one chunk of one prompt (those that are being computed take turns), and takes one decode
step of every slot that has its prompt. Chunks are cut so that the step comes in time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from selfdraft.errors import ConfigError
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.memory import available_bytes
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import TokenEvent
from selfdraft.runtime.serving.admission import Admission, Available
from selfdraft.runtime.serving.events import (
    Closing,
    Finished,
    Outcome,
    Overloaded,
    ServiceEvent,
    TimedOut,
)
from selfdraft.runtime.serving.options import ServingOptions
from selfdraft.runtime.serving.pace import Pace
from selfdraft.runtime.serving.placement import place
from selfdraft.runtime.serving.snapshot import Counters, ServiceSnapshot, take_snapshot
from selfdraft.runtime.serving.ticket import OnEvent, Ticket


class Delivery(NamedTuple):
    """One event on its way to the ticket's ``on_event``."""

    ticket: Ticket
    event: ServiceEvent


class Scheduler:
    """Runs requests in the slots of ``loop``: they join and leave between steps.

    ``submit`` and ``snapshot`` may be called from any thread; ``step`` and everything that it does
    belong to one. ``clock``: monotonic seconds. ``available``: bytes of memory that are free.
    """

    def __init__(
        self,
        loop: DecodeLoop,
        options: ServingOptions | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        available: Available = available_bytes,
    ) -> None:
        self._loop = loop
        self.options = options or ServingOptions()
        self.clock = clock
        self._admission = Admission(loop, self.options, available=available)
        self._pace = Pace(self.options.target_gap_ms / 1e3)
        self._lock = threading.Lock()
        """Guards the queue and the slots, which ``submit`` and ``snapshot`` read from other threads."""
        self._waiting: deque[Ticket] = deque()
        self._running: dict[int, Ticket] = {}
        self._filling: deque[int] = deque()
        """Slots whose prompt is being computed; the first one is next."""
        self._last_use = [0.0] * loop.batch
        self._numbers = 0
        self._closing = False
        self._counters = Counters()

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would do anything."""
        return bool(self._waiting or self._running)

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
        with self._lock:
            self._check_room(request)
        # Grammars and the like are made here, so that running streams do not wait for them.
        run = self._loop.prepare(request)
        with self._lock:
            self._check_room(request)  # others may have come meanwhile
            self._numbers += 1
            ticket = Ticket(
                self._numbers,
                run,
                on_event=on_event,
                submitted_at=self.clock(),
                timeout_s=self.options.request_timeout_s if timeout_s is None else timeout_s,
                wake=wake,
            )
            self._waiting.append(ticket)
            return ticket

    def close(self) -> None:
        """Take no new requests."""
        with self._lock:
            self._closing = True

    def step(self) -> Iterator[Delivery]:
        """One round, which runs as its events are taken: hand each on at once, and take all of them.

        An error of a chunk or a step ends the requests that ran in it, and is told to each of them.
        """
        yield from self._give_up()
        while self._waiting and len(self._running) < self._loop.batch:
            yield from self._join()
        if self._filling:
            yield from self._fill()
        if self._loop.active:
            yield from self._decode()

    def cancel_all(self) -> list[Delivery]:
        """End every request, those in the queue too."""
        for ticket in [*self._waiting, *self._running.values()]:
            ticket.cancelled = True
        return [*self._give_up()]

    def fail_all(self, error: Exception) -> list[Delivery]:
        """End every request with ``error``: one that no step is to blame for."""
        with self._lock:
            tickets = [*self._waiting, *self._running.values()]
            self._waiting.clear()
        for slot in self._running:
            self._loop.cancel(slot)
        return [self._finish(ticket, "failed", error) for ticket in tickets]

    def snapshot(self, *, alive: bool = True) -> ServiceSnapshot:
        """Numbers of now; from any thread."""
        with self._lock:
            waiting, running = list(self._waiting), dict(self._running)
        return take_snapshot(
            self._loop,
            self._counters,
            waiting=waiting,
            running=running,
            step_s=self._pace.step_s,
            closing=self._closing,
            alive=alive,
        )

    def _check_room(self, request: Request) -> None:
        if self._closing:
            raise Closing
        shortage = self._admission.shortage(
            request,
            waiting=[ticket.request for ticket in self._waiting],
            running=[ticket.request for ticket in self._running.values()],
        )
        if shortage is not None:
            self._counters.refused += 1
            retry_after_s = self._admission.retry_after_s(len(self._waiting))
            raise Overloaded(shortage, retry_after_s=retry_after_s)

    def _give_up(self) -> Iterator[Delivery]:
        now = self.clock()
        with self._lock:
            tickets = [*self._waiting, *self._running.values()]
        for ticket in tickets:
            late = self._lateness(ticket, now)
            if not ticket.cancelled and late is None:
                continue
            if ticket.slot is None:
                with self._lock:
                    self._waiting.remove(ticket)
            else:
                self._loop.cancel(ticket.slot)
            if late is None or ticket.cancelled:
                yield self._finish(ticket, "cancelled")
            else:
                yield self._finish(ticket, "timed_out", late)

    def _lateness(self, ticket: Ticket, now: float) -> TimedOut | None:
        passed, longest = now - ticket.submitted_at, self.options.queue_timeout_s
        if ticket.timeout_s is not None and passed >= ticket.timeout_s:
            return TimedOut(f"the request took {passed:.1f} s, it may take {ticket.timeout_s:g} s")
        if ticket.started_at is None and longest is not None and passed >= longest:
            return TimedOut(f"the request waited {passed:.1f} s for a slot")
        return None

    def _join(self) -> Iterator[Delivery]:
        """The request that waits longest gets a slot; its prompt is computed from the next chunk on."""
        ticket = self._waiting[0]
        found = place(
            self._loop, ticket.request, busy=self._running.keys(), last_use=self._last_use
        )
        with self._lock:
            self._waiting.popleft()
            self._running[found.slot] = ticket
            ticket.slot, ticket.started_at = found.slot, self.clock()
        self._filling.append(found.slot)
        with self._failing([ticket]) as failures:
            if found.copied_from is not None:
                self._loop.copy_prefix(found.copied_from, found.slot, found.length)
            self._counters.reused += self._loop.admit(found.slot, ticket.run)
            ticket.admitted = True
            self._counters.prompt += ticket.num_tokens
        yield from failures

    def _fill(self) -> Iterator[Delivery]:
        """One chunk of the prompt whose turn it is; beside running streams it is cut to fit."""
        loop, slot = self._loop, self._filling[0]
        self._filling.rotate(-1)
        ticket, most = self._running[slot], loop.chunk_rows
        rows = self._pace.rows(most) if loop.active else most
        started, before = self.clock(), loop.num_cached(slot)
        with self._failing([ticket]) as failures:
            events = loop.fill(slot, most=rows)
            computed = loop.num_cached(slot) - before
            self._pace.note_chunk(computed, self.clock() - started)
            if slot in loop.active or not loop.is_busy(slot):
                self._filling.remove(slot)
            yield from self._take(events, [slot])
        yield from failures

    def _decode(self) -> Iterator[Delivery]:
        active, started = self._loop.active, self.clock()
        with self._failing([self._running[slot] for slot in active]) as failures:
            events = self._loop.step()
            self._counters.steps += 1
            self._pace.note_step(self.clock() - started)
            yield from self._take(events, active)
        yield from failures

    def _take(self, events: list[TokenEvent], slots: Sequence[int]) -> Iterator[Delivery]:
        """Events of ``slots``, and the ends that come with them."""
        now = self.clock()
        for event in events:
            ticket = self._running[event.slot]
            self._counters.generated += 1
            if ticket.first_token_at is None:
                ticket.first_token_at = now
            yield Delivery(ticket, event)
        for slot in slots:
            if not self._loop.is_busy(slot):
                yield self._finish(self._running[slot], "done")

    @contextmanager
    def _failing(self, tickets: list[Ticket]) -> Iterator[list[Delivery]]:
        """Turn an error into the end of ``tickets``; the list given is filled with these."""
        failures: list[Delivery] = []
        try:
            yield failures
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends these requests only
            for ticket in tickets:
                if not ticket.finished:
                    assert ticket.slot is not None
                    self._loop.cancel(ticket.slot)
                    failures.append(self._finish(ticket, "failed", error))

    def _finish(self, ticket: Ticket, outcome: Outcome, error: Exception | None = None) -> Delivery:
        """The last event of ``ticket``; its slot is free from now on."""
        now, result, slot = self.clock(), None, ticket.slot
        if slot is not None:
            result = self._loop.result(slot) if ticket.admitted else None
            assert ticket.started_at is not None
            self._admission.note_reply(slot, now - ticket.started_at)
            self._last_use[slot] = now
            if slot in self._filling:
                self._filling.remove(slot)
        with self._lock:
            if slot is not None:
                del self._running[slot]
            ticket.finished = True
            self._counters.finished[outcome] += 1
        end = Finished(outcome=outcome, result=result, error=error, timing=ticket.timing(now))
        return Delivery(ticket, end)
