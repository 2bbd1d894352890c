"""Traffic of two kinds: clients that wait for their replies, and arrivals that wait for nobody."""

from __future__ import annotations

import http.client
import itertools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from selfdraft.cli.load.client import Answered

MOST_AT_ONCE = 512
"""Requests of an open loop on their way; where more would be, arrivals are late and say so."""
LONGEST_PAUSE_S = 5.0
OVERLOADED = (429, 503)

Send = Callable[[int], Answered]
"""Sends the request of this number and takes in its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured load: ``clients`` that each wait for their reply, or arrivals at ``rate``."""

    clients: int | None = None
    rate: float | None = None
    """Requests a second, on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request and what came of it."""

    due_at: float
    """Clock when it was to be sent: a late generator must not make a server look quick."""
    answered: Answered | None
    failure: str | None = None
    """Why there is no answer."""

    @property
    def is_refused(self) -> bool:
        """The server had no room."""
        return self.answered is not None and self.answered.status in OVERLOADED


def run_point(send: Send, point: Point, *, requests: int, first: int, seed: int) -> list[Sent]:
    """Send requests ``first``, ``first + 1``, … and wait for all of them."""
    if point.clients is not None:
        return _closed(send, range(first, first + requests), clients=point.clients)
    assert point.rate is not None
    times = arrival_times(point.rate, requests, seed=seed)
    return _open(send, dict(zip(range(first, first + requests), times, strict=True)))


def arrival_times(rate: float, count: int, *, seed: int) -> list[float]:
    """Seconds of ``count`` arrivals from the first on: a Poisson process of ``rate`` a second."""
    rng = random.Random(seed)
    gaps = [0.0, *(rng.expovariate(rate) for _ in range(count - 1))]
    return list(itertools.accumulate(gaps))


def _closed(send: Send, numbers: range, *, clients: int) -> list[Sent]:
    """Each client sends the next request when its last one is answered."""
    waiting, lock, found = iter(numbers), threading.Lock(), list[Sent]()

    def client() -> None:
        while True:
            with lock:
                number = next(waiting, None)
            if number is None:
                return
            sent = _attempt(send, number, due_at=time.perf_counter())
            with lock:
                found.append(sent)
            if sent.is_refused and sent.answered is not None:
                time.sleep(_pause_s(sent.answered.retry_after))

    _join([_started(client) for _ in range(min(clients, len(numbers)))])
    return found


def _open(send: Send, due_s: dict[int, float]) -> list[Sent]:
    """Each request goes when it is due, however many are on their way."""
    found: list[Sent] = []
    places, threads = threading.Semaphore(MOST_AT_ONCE), list[threading.Thread]()
    start = time.perf_counter()

    def one(number: int, due_at: float) -> None:
        try:
            found.append(_attempt(send, number, due_at=due_at))
        finally:
            places.release()

    for number, after in due_s.items():
        due_at = start + after
        time.sleep(max(due_at - time.perf_counter(), 0.0))
        places.acquire()
        threads.append(_started(one, number, due_at))
    _join(threads)
    return found


def _attempt(send: Send, number: int, *, due_at: float) -> Sent:
    try:
        return Sent(due_at=due_at, answered=send(number))
    except (OSError, http.client.HTTPException, ValueError) as error:
        failure = f"{type(error).__name__}: {error}"[:200]
        return Sent(due_at=due_at, answered=None, failure=failure)


def _pause_s(retry_after: str | None) -> float:
    """What the server asks for, within bounds."""
    asked = float(retry_after) if retry_after and retry_after.isdecimal() else 1.0
    return min(asked, LONGEST_PAUSE_S)


def _started(work: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join()
