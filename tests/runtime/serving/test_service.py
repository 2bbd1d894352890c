"""The service: tokens of each request are its own, and every ticket gets exactly one end."""

from __future__ import annotations

import queue
from typing import Any

import pytest
from support.tiny_model import backend

from selfdraft.errors import ConfigError, ResourceError
from selfdraft.runtime.generation import Generation
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import TokenEvent
from selfdraft.runtime.sampling import SamplingParams
from selfdraft.runtime.serving.events import Closing, Finished, Overloaded
from selfdraft.runtime.serving.options import ServingOptions
from selfdraft.runtime.serving.scheduler import Scheduler
from selfdraft.runtime.serving.service import Service

WAIT_S = 60.0


class Inbox:
    """Collects the events of one ticket."""

    def __init__(self) -> None:
        self._events: queue.Queue[Any] = queue.Queue()
        self.tokens: list[int] = []

    def __call__(self, event: Any) -> None:
        self._events.put(event)

    def finished(self) -> Finished:
        """Wait for the end; nothing may follow it."""
        while True:
            event = self._events.get(timeout=WAIT_S)
            if isinstance(event, Finished):
                assert self._events.empty()
                return event
            assert isinstance(event, TokenEvent)
            self.tokens.append(event.token)


def request(*prompt: int, max_tokens: int = 12, temperature: float = 0.0) -> Request:
    sampling = SamplingParams(temperature=temperature, seed=3)
    return Request(prompt_ids=prompt, max_tokens=max_tokens, sampling=sampling)


def service(batch: int = 2, *, engine: Any = None, **options: Any) -> Service:
    loop = DecodeLoop(engine or backend(), batch=batch, drafts=1, context_length=64)
    return Service(Scheduler(loop, ServingOptions(**options)))


def alone(asked: Request, engine: Any = None) -> list[int]:
    loop = DecodeLoop(engine or backend(), drafts=0, context_length=64)
    return [event.token for event in Generation(loop, {0: asked})]


def test_more_requests_than_slots_all_get_their_own_tokens() -> None:
    serve_five(backend())


@pytest.mark.slow
def test_engines_are_run_by_the_thread_of_the_service(on_double: Any) -> None:
    """Opened by another one; on the double of TensorRT, which knows whose thread has the context."""
    serve_five(on_double(context_length=64))


def serve_five(engine: Any) -> None:
    """Five requests over two slots, each compared with itself alone."""
    asked = [request(1 + i, 5, 9, temperature=0.8 * (i % 2)) for i in range(5)]
    inboxes = [Inbox() for _ in asked]
    with service(engine=engine) as served:
        for one, inbox in zip(asked, inboxes, strict=True):
            served.submit(one, on_event=inbox)
        ends = [inbox.finished() for inbox in inboxes]
    for one, inbox, end in zip(asked, inboxes, ends, strict=True):
        assert end.outcome == "done" and end.result is not None
        assert inbox.tokens == list(end.result.tokens) == alone(one, engine)


def test_closing_cancels_what_is_left_and_refuses_new_requests() -> None:
    inbox, served = Inbox(), service()
    served.submit(request(1, 2, max_tokens=60), on_event=inbox)
    served.close()
    assert inbox.finished().outcome in ("cancelled", "done")
    with pytest.raises(Closing):
        served.submit(request(1), on_event=inbox)
    assert not served.snapshot().alive


def test_a_full_queue_refuses_with_a_time_to_retry() -> None:
    scheduler = Scheduler(
        DecodeLoop(backend(), batch=1, context_length=64), ServingOptions(max_waiting=1)
    )
    for _ in range(2):
        scheduler.submit(request(1), on_event=Inbox())
    with pytest.raises(Overloaded) as caught:
        scheduler.submit(request(1), on_event=Inbox())
    assert caught.value.retry_after_s > 0
    assert scheduler.snapshot().refused == 1


@pytest.mark.parametrize(
    ("asked", "error"),
    [(request(999), ConfigError), (request(*([1] * 64)), ResourceError)],
)
def test_a_request_that_can_never_run_is_refused_at_once(
    asked: Request, error: type[Exception]
) -> None:
    with service() as served, pytest.raises(error):
        served.submit(asked, on_event=Inbox())


def test_an_owner_that_fails_loses_its_own_request_only() -> None:
    good, seen = Inbox(), []

    def bad(event: Any) -> None:
        seen.append(event)
        raise RuntimeError("client gone")

    with service() as served:
        served.submit(request(1, 2, max_tokens=60), on_event=bad)
        served.submit(request(4, 5), on_event=good)
        assert good.finished().outcome == "done"
    assert good.tokens == alone(request(4, 5))
    assert isinstance(seen[-1], Finished) and seen[-1].outcome == "cancelled"


def test_an_error_that_no_step_is_to_blame_for_ends_the_requests_and_not_the_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from selfdraft.runtime.serving import scheduler

    place = scheduler.place

    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("planted")

    with service() as served:
        monkeypatch.setattr(scheduler, "place", broken)
        lost = Inbox()
        served.submit(request(1, 2), on_event=lost)
        end = lost.finished()
        assert end.outcome == "failed" and isinstance(end.error, ValueError)
        monkeypatch.setattr(scheduler, "place", place)
        good = Inbox()
        served.submit(request(4, 5), on_event=good)
        assert good.finished().outcome == "done" and served.snapshot().running == 0
    assert good.tokens == alone(request(4, 5))
