"""What a request leaves behind in the server's process once it is over: nothing."""

from __future__ import annotations

import gc
import json
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.http_server import WAIT_S, serving, wait_for_idle, wait_for_running

pytest.importorskip("uvicorn", reason="pip install 'selfdraft[serve]'")

from selfdraft.cli.load.address import Address, loopback_address
from selfdraft.cli.load.client import CHAT, ask
from selfdraft.cli.serving.answer import Answer
from selfdraft.cli.serving.exchange import Exchange
from selfdraft.cli.serving.failures import ApiError
from selfdraft.errors import ConfigError
from selfdraft.runtime.result import TokenEvent
from selfdraft.runtime.serving.events import Overloaded
from selfdraft.runtime.serving.options import ServingOptions
from selfdraft.runtime.serving.ticket import Ticket

ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "recite"}]}
OWN = (Answer, Exchange, Ticket, TokenEvent)
"""Kinds of objects that belong to one request."""
REFUSALS = (Overloaded, ApiError, ConfigError)
ROUNDS = 4


def _requests(address: Address) -> None:
    """One request of each kind: whole, a stream, its client gone, refused."""
    assert ask(address, CHAT, ASK).is_whole
    assert ask(address, CHAT, ASK | {"stream": True, "logprobs": True}).is_whole
    ask(address, CHAT, ASK | {"stream": True, "stop": ["zzz"]}, most_pieces=1)
    assert ask(address, CHAT, b"{").status == 400
    assert ask(address, CHAT, json.dumps(ASK | {"temperature": -1}).encode()).status == 400


def _alive(kinds: tuple[type, ...] = OWN) -> Counter[str]:
    return Counter(type(one).__name__ for one in gc.get_objects() if type(one) in kinds)


def _settled(wanted: Callable[[Counter[str]], bool], kinds: tuple[type, ...] = OWN) -> Counter[str]:
    """What is alive once it is as ``wanted``, or when that takes too long."""
    deadline = time.monotonic() + WAIT_S
    while not wanted(found := _alive(kinds)) and time.monotonic() < deadline:
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


def test_refusals_need_no_garbage_collector(endless_bundle: Path) -> None:
    options = ServingOptions(max_waiting=0)
    with serving(endless_bundle, slots=1, options=options) as opened, ThreadPoolExecutor(1) as pool:
        address = loopback_address(opened.url)
        long = ASK | {"stream": True, "max_tokens": 7000}
        running = pool.submit(ask, address, CHAT, long)
        wait_for_running(opened)
        gc.collect()
        before = _alive(REFUSALS)
        gc.disable()
        try:
            for _ in range(ROUNDS):
                assert ask(address, CHAT, ASK).status == 429
                assert ask(address, CHAT, ASK | {"temperature": -1}).status == 400
                assert ask(address, CHAT, ASK | {"model": "another"}).status == 404
            assert not running.done(), "there was no room all the time"
            after = _settled(lambda found: found <= before, REFUSALS)
        finally:
            gc.enable()
            opened.stop()
    assert after <= before, "errors and the frames that raised them wait for each other in circles"
