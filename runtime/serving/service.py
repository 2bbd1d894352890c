"""A scheduler and the one thread that runs it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from selfdraft.runtime.request import Request
from selfdraft.runtime.serving.scheduler import Delivery, Scheduler
from selfdraft.runtime.serving.snapshot import ServiceSnapshot
from selfdraft.runtime.serving.ticket import OnEvent, Ticket

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

IDLE_WAIT_S = 0.5
"""Longest sleep of an idle worker."""


class Service:
    """Takes requests from any thread and runs them together on a thread of its own.

    Use as a context manager, or call ``close``. Nothing else may touch the scheduler's loop meanwhile.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._wakened = threading.Condition()
        self._stopping = False
        self._worker = threading.Thread(target=self._run, name="selfdraft-service", daemon=True)
        self._worker.start()

    def submit(
        self, request: Request, *, on_event: OnEvent, timeout_s: float | None = None
    ) -> Ticket:
        """Queue ``request``; the ticket can cancel it.

        ``on_event`` gets each ``TokenEvent`` as it comes, and last exactly one ``Finished``, on the
        worker's thread; it should only hand them on. Where it raises, the request is cancelled.
        ``timeout_s``: from now to the end of the reply; None takes the options' time.

        Raises ``Overloaded`` where the queue is full or memory is short, ``Closing`` after ``close``,
        ``ConfigError`` or ``ResourceError`` for a request that can never run.
        """
        ticket = self._scheduler.submit(
            request, on_event=on_event, timeout_s=timeout_s, wake=self._wake
        )
        self._wake()
        return ticket

    def snapshot(self) -> ServiceSnapshot:
        """How it stands now."""
        return self._scheduler.snapshot(alive=self._worker.is_alive())

    def close(self, drain_s: float = 0.0) -> None:
        """Take no new requests, let those at work finish for ``drain_s`` seconds, cancel the rest.

        Returns when the thread has ended and every request had its ``Finished``. May be called again.
        """
        self._scheduler.close()
        deadline = time.monotonic() + drain_s
        while self._scheduler.has_work and time.monotonic() < deadline and self._worker.is_alive():
            time.sleep(min(0.01, max(deadline - time.monotonic(), 0.0)))
        self._stopping = True
        self._wake()
        self._worker.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wake(self) -> None:
        with self._wakened:
            self._wakened.notify()

    def _run(self) -> None:
        scheduler = self._scheduler
        while not self._stopping:
            with self._wakened:
                if not scheduler.has_work and not self._stopping:
                    self._wakened.wait(IDLE_WAIT_S)
            if scheduler.has_work:
                try:
                    _hand_out(scheduler.step())
                except Exception as error:
                    log.exception("a round failed outside of its steps; every request ends")
                    _hand_out(scheduler.fail_all(error))
        _hand_out(scheduler.cancel_all())


def _hand_out(deliveries: Iterable[Delivery]) -> None:
    """Tell the owners; one that fails loses its own request only."""
    for ticket, event in deliveries:
        try:
            ticket.on_event(event)
        except Exception:
            log.exception("on_event of request %d failed; the request is cancelled", ticket.number)
            ticket.cancelled = True
