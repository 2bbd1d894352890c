"""The requests of the soak: what each kind sends, and what has to come back."""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from selfdraft.cli.load.address import Address
from selfdraft.cli.load.client import CHAT, TEXT, ask

MAX_BODY = 64 * 1024
TOKENS = (8, 24, 64, 120)
OVERLOADED = 429
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
MALFORMED: tuple[tuple[bytes, int], ...] = (
    (b"{", 400),
    (b"[]", 400),
    (b"[" * 20_000, 400),
    (b'{"messages": []}', 400),
    (b'{"messages": [{"role": "user", "content": 7}]}', 400),
    (b'{"messages": [{"role": "user", "content": "a"}], "temperature": -1}', 400),
    (b'{"messages": [{"role": "user", "content": "a"}], "tempersture": 1}', 400),
    (b'{"messages": [{"role": "user", "content": "a"}], "model": "another"}', 404),
    (b'{"messages": [{"role": "user", "content": "a"}], "logit_bias": {"99999999": 1}}', 400),
    (b'{"messages": [{"role": "user", "content": "' + b"a" * MAX_BODY + b'"}]}', 413),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One request whose whole reply is known."""

    kind: str
    path: str
    body: dict[str, Any]

    @property
    def key(self) -> str:
        """Requests with the same key have the same reply."""
        shown = {name: value for name, value in self.body.items() if not name.startswith("stream")}
        return json.dumps([self.path, shown], sort_keys=True)


class Load:
    """Makes requests, remembers replies that came alone, and judges those that came together."""

    def __init__(self, address: Address, prompts: list[str], *, seed: int) -> None:
        self._address = address
        self._tasks = _tasks(prompts, random.Random(seed))
        self._expected: dict[str, str] = {}

    def learn(self) -> None:
        """Ask each task alone. Raises ``RuntimeError`` where that fails."""
        for task in self._tasks:
            if task.key not in self._expected:
                found = ask(self._address, task.path, task.body)
                if not found.is_whole:
                    raise RuntimeError(f"{task.kind} failed alone: {found.status} {found.error}")
                self._expected[task.key] = found.text

    def whole(self, rng: random.Random) -> tuple[str, str]:
        """A task to its end: its kind and what came of it (``ok``, ``refused``, or a complaint)."""
        task = rng.choice(self._tasks)
        found = ask(self._address, task.path, task.body)
        if found.status == OVERLOADED:
            return task.kind, "refused" if found.retry_after else "429 without Retry-After"
        if not found.is_whole:
            return task.kind, f"{found.status}: {found.error}"
        if found.text != self._expected[task.key]:
            return task.kind, f"wrong text: {found.text!r}, alone {self._expected[task.key]!r}"
        return task.kind, "ok"

    def gone(self, rng: random.Random) -> tuple[str, str]:
        """A client that hangs up after some pieces; what it saw must be right."""
        task = rng.choice([task for task in self._tasks if task.body.get("stream")])
        found = ask(self._address, task.path, task.body, most_pieces=rng.randint(1, 6))
        if found.status == OVERLOADED:
            return "gone", "refused"
        right = self._expected[task.key].startswith(found.text)
        return "gone", "ok" if right else f"wrong text before it left: {found.text!r}"

    def malformed(self, rng: random.Random) -> tuple[str, str]:
        """A body that must be refused with its status."""
        body, status = rng.choice(MALFORMED)
        try:
            found = ask(self._address, CHAT, body)
        except (BrokenPipeError, ConnectionResetError, http.client.RemoteDisconnected):
            # Refused before the whole of a long body was sent.
            return "malformed", "ok" if status == 413 else "connection lost"
        if found.status == OVERLOADED:  # a full queue does not look closer
            return "malformed", "refused"
        right = found.status == status and found.error
        return "malformed", "ok" if right else f"{body[:60]!r}: {found.status}, not {status}"

    def step(self, rng: random.Random) -> tuple[str, str]:
        """One request of a kind by chance."""
        kinds: list[Callable[[random.Random], tuple[str, str]]]
        kinds = [self.whole] * 7 + [self.gone] * 2 + [self.malformed]
        return rng.choice(kinds)(rng)


def _tasks(prompts: list[str], rng: random.Random) -> list[Task]:
    tasks = []
    for index, prompt in enumerate(prompts):
        messages = [{"role": "user", "content": prompt}]
        for stream in (True, False):
            common = {"stream": stream, "max_tokens": rng.choice(TOKENS)}
            drawn = {"temperature": 0.8, "top_p": 0.9, "seed": index}
            chat = {"messages": messages, **common}
            tasks += [
                Task(kind="greedy", path=CHAT, body={**chat, "temperature": 0}),
                Task(kind="drawn", path=CHAT, body={**chat, **drawn}),
                Task(kind="stop", path=CHAT, body={**chat, **drawn, "stop": ["e", ". "]}),
                Task(kind="text", path=TEXT, body={"prompt": prompt, **common, **drawn}),
                Task(kind="logprobs", path=CHAT, body={**chat, "logprobs": True}),
            ]
            if find_spec("llguidance") and index < 2:
                shape = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
                tasks.append(
                    Task(kind="schema", path=CHAT, body={**chat, **drawn, "response_format": shape})
                )
    return tasks
