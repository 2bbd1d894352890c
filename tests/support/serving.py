"""Schedules of requests that join, leave and give up, on a scheduler that is stepped by hand."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from selfdraft.runtime.generation import Generation
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import TokenEvent
from selfdraft.runtime.sampling import SamplingParams
from selfdraft.runtime.serving.events import Finished
from selfdraft.runtime.serving.scheduler import Scheduler

SEED = 11


@dataclass
class Client:
    """One request of a schedule, and what it was told."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    slots: set[int] = field(default_factory=set)
    end: Finished | None = None

    def __call__(self, event: Any) -> None:
        assert self.end is None, "nothing follows the end"
        if isinstance(event, Finished):
            self.end = event
            return
        assert isinstance(event, TokenEvent)
        assert event.position == len(self.request.prompt_ids) + len(self.tokens)
        self.tokens.append(event.token)
        self.slots.add(event.slot)


class Alone:
    """Tokens of requests by themselves, plain, on a loop that starts afresh."""

    def __init__(self, backend: Any, **options: Any) -> None:
        self._loop = DecodeLoop(backend, drafts=0, **options)

    def __call__(self, request: Request) -> list[int]:
        self._loop.reset(0)
        return [event.token for event in Generation(self._loop, {0: request})]


def requests(rng: random.Random, count: int, *, vocab_size: int, context: int) -> list[Request]:
    """Prompts of unequal lengths, some of which begin alike; greedy and match."""
    shared = [0, *(rng.randrange(1, vocab_size) for _ in range(context // 2))]
    made = []
    for _ in range(count):
        kept = rng.choice([1, 1, 5, context // 4, context // 2])
        added = rng.randint(1, context // 3)
        prompt = (*shared[:kept], *(rng.randrange(1, vocab_size) for _ in range(added)))
        made.append(
            Request(
                prompt_ids=prompt[: context - 2],
                max_tokens=rng.randint(1, 24),
                stop_token_ids=(7,) if rng.random() < 0.3 else (),
                sampling=SamplingParams(temperature=rng.choice([0.0, 0.9]), seed=SEED),
            )
        )
    return made


def run_schedule(
    scheduler: Scheduler, asked: list[Request], rng: random.Random, *, cancels: float = 0.1
) -> list[Client]:
    """Submit ``asked`` between rounds and give some up; every event is handed out at once."""
    clients = [Client(request) for request in asked]
    left, tickets = list(clients), []
    while left or scheduler.has_work:
        while left and rng.random() < 0.5:
            client = left.pop(0)
            tickets.append(scheduler.submit(client.request, on_event=client))
        if tickets and rng.random() < cancels:
            rng.choice(tickets).cancel()
        for ticket, event in scheduler.step():
            ticket.on_event(event)
    return clients


def check(clients: list[Client], alone: Alone) -> None:
    """Every request has its own tokens, as far as it came."""
    for client in clients:
        end, wanted = client.end, alone(client.request)
        assert end is not None
        assert client.tokens == wanted[: len(client.tokens)]
        assert len(client.slots) <= 1
        assert end.outcome == "cancelled" or client.tokens == wanted
        if end.result is not None:
            assert list(end.result.tokens) == client.tokens
