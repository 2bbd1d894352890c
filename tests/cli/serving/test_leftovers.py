"""What a request leaves behind in the server's process once it is over: nothing."""

from __future__ import annotations

import gc
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.http_server import WAIT_S, serving, wait_for_idle

pytest.importorskip("uvicorn", reason="pip install 'selfdraft[serve]'")

from selfdraft.cli.load.address import Address, loopback_address
from selfdraft.cli.load.client import CHAT, ask
from selfdraft.cli.serving.answer import Answer
from selfdraft.cli.serving.exchange import Exchange
from selfdraft.runtime.result import TokenEvent
from selfdraft.runtime.serving.ticket import Ticket

ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "recite"}]}
OWN = (Answer, Exchange, Ticket, TokenEvent)
"""Kinds of objects that belong to one request."""
ROUNDS = 4


def _requests(address: Address) -> None:
    """One request of each kind: whole, a stream, its client gone, refused."""
    assert ask(address, CHAT, ASK).is_whole
    assert ask(address, CHAT, ASK | {"stream": True, "logprobs": True}).is_whole
    ask(address, CHAT, ASK | {"stream": True, "stop": ["zzz"]}, most_pieces=1)
    assert ask(address, CHAT, b"{").status == 400
    assert ask(address, CHAT, json.dumps(ASK | {"temperature": -1}).encode()).status == 400


def _alive() -> Counter[str]:
    return Counter(type(one).__name__ for one in gc.get_objects() if type(one) in OWN)


def _settled(wanted: Callable[[Counter[str]], bool]) -> Counter[str]:
    """What is alive once it is as ``wanted``, or when that takes too long."""
    deadline = time.monotonic() + WAIT_S
    while not wanted(found := _alive()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def test_requests_that_are_over_need_no_garbage_collector(shared_bundle: Path) -> None:
    with serving(shared_bundle) as opened:
        address = loopback_address(opened.url)
        _requests(address)
        wait_for_idle(opened)
        gc.collect()
        before = _alive()
        gc.disable()
        try:
            for _ in range(ROUNDS):
                _requests(address)
            wait_for_idle(opened)
            after = _settled(lambda found: found <= before)
        finally:
            gc.enable()
        assert after <= before, "they wait for each other in circles"
