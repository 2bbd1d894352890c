"""Clients that go, too many of them, bodies that are none, and a server that is ended."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import pytest
from support.http_server import WAIT_S, serving, wait_for_idle
from support.reciting_bundle import REPLY

pytest.importorskip("uvicorn", reason="pip install 'selfdraft[serve]'")

from selfdraft.cli.load.address import Address, loopback_address
from selfdraft.cli.load.client import CHAT, ask
from selfdraft.cli.serving.server import bound_socket
from selfdraft.cli.serving.settings import ServerSettings
from selfdraft.errors import ConfigError
from selfdraft.runtime.serving.options import ServingOptions

MAX_BODY = 150_000
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "recite"}]}
STREAM = ASK | {"stream": True}


def test_a_client_that_hangs_up_frees_its_slot_and_harms_no_other(endless_bundle: Path) -> None:
    long = STREAM | {"max_tokens": 7000}
    with serving(endless_bundle, slots=2) as opened:
        address = loopback_address(opened.url)
        kept = ThreadPoolExecutor(1).submit(ask, address, CHAT, STREAM | {"max_tokens": 120})
        for _ in range(3):
            assert ask(address, CHAT, long, most_pieces=3).text
        assert kept.result().text == (REPLY * 20)[: len(kept.result().text)]
        now = wait_for_idle(opened)
        assert now.finished["cancelled"] == 3 and now.generated_tokens < 5000


def test_a_client_that_goes_before_its_whole_reply_frees_its_slot(endless_bundle: Path) -> None:
    with serving(endless_bundle, slots=1) as opened:
        address = loopback_address(opened.url)
        with pytest.raises(OSError):
            ask(address, CHAT, ASK | {"max_tokens": 7000}, timeout_s=0.3)
        assert wait_for_idle(opened).finished["cancelled"] == 1


def test_ten_times_too_many_are_refused_clearly_and_the_rest_answered(shared_bundle: Path) -> None:
    with serving(shared_bundle, slots=2, options=ServingOptions(max_waiting=2)) as opened:
        address = loopback_address(opened.url)
        with ThreadPoolExecutor(40) as pool:
            found = list(pool.map(lambda _: ask(address, CHAT, STREAM), range(40)))
        assert {one.status for one in found} == {200, 429}
        assert all(one.text == REPLY for one in found if one.status == 200)
        refused = [one for one in found if one.status == 429]
        assert all(one.retry_after and int(one.retry_after) >= 1 for one in refused)
        now = wait_for_idle(opened)
        assert now.refused == len(refused)
        assert ask(address, CHAT, ASK).text == REPLY


def test_too_many_connections_are_refused_as_clients_expect_it(shared_bundle: Path) -> None:
    with serving(shared_bundle, max_connections=2) as opened, ExitStack() as idle:
        address = loopback_address(opened.url)
        idle.enter_context(socket.create_connection(address))
        assert ask(address, CHAT, ASK).text == REPLY, "the second of two"
        idle.enter_context(socket.create_connection(address))
        connection = HTTPConnection(*address, timeout=WAIT_S)
        connection.request("POST", CHAT, json.dumps(ASK), {"Content-Type": "application/json"})
        response = connection.getresponse()
        error = json.loads(response.read())["error"]
        assert (response.status, error["code"]) == (503, "too_many_connections")
        assert error["type"] == "server_error" and error["message"]
        assert response.headers["Retry-After"] and response.headers["Connection"] == "close"
        assert response.headers.get_content_type() == "application/json"
        idle.close()
        deadline = time.monotonic() + WAIT_S
        while (found := ask(address, CHAT, ASK)).status == 503 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert found.text == REPLY
        told = http(f"{opened.url}/metrics")[1].decode()
    assert f'http_responses_total{{path="{CHAT}",status="503"}}' in told


@pytest.fixture(scope="module")
def address(shared_bundle: Path) -> Iterator[Address]:
    with serving(shared_bundle, max_body_bytes=MAX_BODY) as opened:
        yield loopback_address(opened.url)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[" * 100_000, 400),
        (b"\xff\xfe", 400),
        (b'{"messages": "hi"}', 400),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400),
        (b'{"messages": [{"role": "user", "content": "a"}], "\\ud800": 1}', 400),
        (b'{"messages": [{"role": "user", "content": "a"}], "logprobs": 1e999}', 400),
        (b'{"messages": [{"role": "user", "content": "a"}], "seed": 1e400}', 400),
        (b'{"messages": [{"role": "user", "content": "a"}], "temperature": NaN}', 400),
        (b" " * 200_000, 413),
    ],
)
def test_a_malformed_body_has_its_status(address: Address, body: bytes, status: int) -> None:
    found = ask(address, CHAT, body)
    assert (found.status, bool(found.error)) == (status, True)


def http(url: str, **headers: str) -> tuple[int, bytes]:
    """Status and body of a GET."""
    asked = HttpRequest(url, headers={name.replace("_", "-"): v for name, v in headers.items()})
    try:
        with urlopen(asked, timeout=WAIT_S) as response:
            return response.status, response.read()
    except HTTPError as error:
        return error.code, error.read()


def test_only_json_is_taken_so_that_no_page_in_a_browser_can_ask(address: Address) -> None:
    url = f"http://{address.host}:{address.port}{CHAT}"
    asked = HttpRequest(url, json.dumps(ASK).encode(), {"Content-Type": "text/plain"})
    with pytest.raises(HTTPError) as caught:
        urlopen(asked, timeout=WAIT_S)
    assert caught.value.code == 415


@pytest.mark.parametrize("name", ["", " ", "a\nb", "caf\udce9"])
def test_a_name_that_no_answer_could_hold_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        ServerSettings(model_name=name)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none_is_refused(port: int) -> None:
    with pytest.raises(ConfigError, match=f"there is no port {port}"):
        ServerSettings(port=port)


def test_a_wrong_path_or_method_is_told_what_there_is(address: Address) -> None:
    url = f"http://{address.host}:{address.port}"
    missing, get = (json.loads(http(url + path)[1])["error"] for path in ("/v1/embeddings", CHAT))
    assert (
        missing["message"] == "there is nothing at '/v1/embeddings': /openapi.json lists the paths"
    )
    assert get["message"] == "this path takes POST, not GET"


@pytest.mark.parametrize(
    ("host", "why", "hint"),
    [
        ("127.0.0.1", "Address already in use", "is a server running there already?"),
        ("203.0.113.5", "Cannot assign requested address", "another --host"),
        ("no-such-host.invalid", "no such host", "another --host"),
        ("x" * 70 + ".invalid", "no such host", "another --host"),
    ],
)
def test_an_address_that_cannot_be_had_is_told_in_words(
    address: Address, host: str, why: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        bound_socket(ServerSettings(host=host, port=address.port))
    assert caught.value.problem == f"cannot listen at {host} port {address.port}: {why}"
    assert hint in caught.value.hint


def test_a_name_that_is_not_localhost_is_refused(address: Address) -> None:
    url = f"http://{address.host}:{address.port}/v1/models"
    assert http(url, Host="localhost:1234")[0] == 200
    assert http(url, Host="rebound.test")[0] == 403


def test_a_key_is_asked_for_everywhere_but_at_health(shared_bundle: Path) -> None:
    with serving(shared_bundle, api_key="secret") as opened:
        for path in ("/v1/models", "/metrics", "/openapi.json", "/nowhere"):
            assert http(opened.url + path)[0] == 401
            assert http(opened.url + path, Authorization="Bearer secre")[0] == 401
            assert http(opened.url + path, Authorization="secret")[0] == 401
            assert http(opened.url + path, Authorization="Bearer secret")[0] != 401
        assert http(opened.url + "/health")[0] == 200


def test_an_unexpected_failure_is_a_500_that_tells_nothing(
    shared_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(shared_bundle) as opened:
        address = loopback_address(opened.url)
        loop = opened.served.session.backend

        def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError("secret path /etc/passwd")

        with monkeypatch.context() as patch:
            patch.setattr(loop, "run_backbone", broken)
            for body in (ASK, STREAM):
                found = ask(address, CHAT, body)
                assert found.status == 500 and found.error == "the server failed at this request"
        assert ask(address, CHAT, ASK).text == REPLY


def test_metrics_tell_what_ran(shared_bundle: Path) -> None:
    with serving(shared_bundle) as opened:
        address = loopback_address(opened.url)
        found = ask(address, CHAT, ASK)
        text = http(opened.url + "/metrics")[1].decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(lines["selfdraft:num_requests_running"]) == 0
    assert float(lines["selfdraft:generation_tokens_total"]) == found.num_tokens
    assert float(lines['selfdraft:requests_total{outcome="done"}']) == 1
    assert float(lines["selfdraft:time_to_first_token_seconds_count"]) == 1
    answered = f'selfdraft:http_responses_total{{path="{CHAT}",status="200"}}'
    assert float(lines[answered]) == 1
    assert "selfdraft:spec_decode_num_drafts_total" in text


class Process:
    """``selfdraft serve`` in a process of its own."""

    def __init__(self, bundle: Path, environment: dict[str, str], *options: str) -> None:
        command = [sys.executable, "-m", "selfdraft.cli.main", "serve", str(bundle)]
        self.process = subprocess.Popen(
            [*command, "--json", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self.process.stdout is not None
        self.url = json.loads(self.process.stdout.readline())["url"]
        self.address = loopback_address(self.url)

    def end(self, number: int) -> tuple[int, str]:
        """Exit code and stderr after a signal."""
        self.process.send_signal(number)
        return self.process.wait(WAIT_S), self.process.communicate()[1]


def test_a_killed_server_starts_again_at_its_port_and_ends_gracefully(
    endless_bundle: Path, process_environment: dict[str, str]
) -> None:
    first = Process(endless_bundle, process_environment, "--port", "0")
    assert ask(first.address, CHAT, ASK | {"max_tokens": 4}).status == 200
    assert first.end(signal.SIGKILL)[0] == -signal.SIGKILL
    second = Process(endless_bundle, process_environment, "--port", str(first.address.port))
    finishes_its_reply(second, signal.SIGTERM)


@pytest.mark.slow
def test_an_interrupt_lets_running_replies_finish(
    endless_bundle: Path, process_environment: dict[str, str]
) -> None:
    finishes_its_reply(Process(endless_bundle, process_environment, "--port", "0"), signal.SIGINT)


def finishes_its_reply(server: Process, number: int) -> None:
    """Send the signal in mid-stream; the stream must come to its own end."""
    body = STREAM | {"max_tokens": 400}
    asked = ThreadPoolExecutor(1).submit(ask, server.address, CHAT, body)
    wait_until_running(server.url)
    code, said = server.end(number)
    found = asked.result()
    assert found.is_whole and found.finish_reason == "length"
    assert code == 0 and said.endswith("stopped\n") and "Traceback" not in said


def test_after_the_drain_time_replies_end_with_an_error_in_the_stream(endless_bundle: Path) -> None:
    with serving(endless_bundle, drain_s=0.2) as opened:
        address = loopback_address(opened.url)
        body = STREAM | {"max_tokens": 7000}
        asked = ThreadPoolExecutor(1).submit(ask, address, CHAT, body)
        wait_until_running(opened.url)
        opened.stop()
        found = asked.result()
    assert found.error is not None and "shutting down" in found.error and found.text


def wait_until_running(url: str) -> None:
    """Return once a request is in a slot."""
    until = time.monotonic() + WAIT_S
    while json.loads(http(url + "/health")[1])["running"] == 0:
        assert time.monotonic() < until
        time.sleep(0.02)
