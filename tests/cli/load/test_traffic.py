"""Loads of both kinds: who sends when, and what their requests add up to."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from selfdraft.cli.load.address import Address
from selfdraft.cli.load.client import CHAT, Answered, ask
from selfdraft.cli.load.figures import load_figures
from selfdraft.cli.load.traffic import Point, Sent, arrival_times, run_point


def answered(
    *, sent_at: float = 0.0, pieces: tuple[float, ...] = (1.0,), tokens: int = 1
) -> Answered:
    return Answered(
        status=200,
        sent_at=sent_at,
        pieces_at=list(pieces),
        ended_at=pieces[-1],
        usage={"completion_tokens": tokens},
        is_whole=True,
    )


class Server:
    """Counts requests on their way."""

    def __init__(self, seconds: float = 0.01) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self.now = self.most = 0
        self.numbers: list[int] = []

    def send(self, number: int) -> Answered:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.numbers.append(number)
        sent_at = time.perf_counter()
        time.sleep(self._seconds)
        with self._lock:
            self.now -= 1
        return answered(sent_at=sent_at, pieces=(time.perf_counter(),))


@pytest.mark.parametrize("clients", [1, 3])
def test_clients_of_a_closed_loop_wait_for_their_replies(clients: int) -> None:
    server = Server()
    sent = run_point(server.send, Point(clients=clients), requests=12, first=5, seed=0)
    assert server.most == clients
    assert sorted(server.numbers) == list(range(5, 17)) and len(sent) == 12


def test_arrivals_of_an_open_loop_wait_for_nobody() -> None:
    server = Server(seconds=0.5)
    sent = run_point(server.send, Point(rate=100.0), requests=10, first=0, seed=0)
    assert server.most == 10, "all come before the first is answered"
    assert len(sent) == 10


def test_arrivals_are_a_poisson_process_of_that_rate() -> None:
    times = arrival_times(4.0, 4000, seed=1)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.07), "as long as the mean"
    assert times == arrival_times(4.0, 4000, seed=1) != arrival_times(4.0, 4000, seed=2)


def test_a_failed_connection_is_a_failed_request() -> None:
    def send(number: int) -> Answered:
        raise ConnectionRefusedError("nobody there")

    sent = run_point(send, Point(clients=1), requests=2, first=0, seed=0)
    figures = load_figures([sent])
    assert (figures["ok"], figures["failed"]) == (0, 2)
    assert figures["errors"] == ["ConnectionRefusedError: nobody there"]
    assert figures["tok_per_s"] is figures["ttft_ms"] is figures["inter_token_ms"] is None


def test_figures_count_from_when_a_request_was_due() -> None:
    late = Sent(due_at=10.0, answered=answered(sent_at=12.0, pieces=(13.0, 13.5, 15.0), tokens=6))
    figures = load_figures([[late]])
    assert figures["ttft_ms"]["p50"] == pytest.approx(3000)
    assert figures["late_ms"]["p50"] == pytest.approx(2000)
    assert figures["total_ms"]["p50"] == pytest.approx(5000)
    assert figures["inter_token_ms"]["p50"] == pytest.approx(1000), "gaps of 0.5 and 1.5 s"
    assert figures["per_token_ms"]["p50"] == pytest.approx(400), "2 s for five tokens"
    assert figures["tok_per_s"] == pytest.approx(6 / 5)


def test_throughput_is_the_median_of_the_rounds_and_times_are_those_of_all() -> None:
    rounds = [
        [Sent(due_at=0.0, answered=answered(pieces=(seconds,), tokens=12))] for seconds in (1, 2, 6)
    ]
    figures = load_figures(rounds)
    assert figures["round_tok_per_s"] == [12, 6, 2] and figures["tok_per_s"] == 6
    assert (figures["ok"], figures["wall_s"], figures["requests_per_s"]) == (3, 9, 0.5)
    assert figures["ttft_ms"]["p50"] == 2000


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (200, "application/json", b"[1]"),
        (200, "application/json", b'{"choices": []}'),
        (200, "application/json", b'{"choices": [{"finish_reason": "stop"}]}'),
        (200, "text/html", b"<p>hello"),
        (200, "text/event-stream", b"data: 3\n\n"),
        (500, "application/json", b'["error"]'),
        (500, "application/json", b'{"error": "no"}'),
    ],
)
def test_an_answer_of_another_kind_is_a_failed_request(status: int, kind: str, body: bytes) -> None:
    with raw_server(status, kind, body) as address:
        sent = run_point(
            lambda _: ask(address, CHAT, {}), Point(clients=1), requests=1, first=0, seed=0
        )
    figures = load_figures([sent])
    assert (figures["ok"], figures["failed"], len(figures["errors"])) == (0, 1, 1)


@contextmanager
def raw_server(status: int, kind: str, body: bytes) -> Iterator[Address]:
    """Answers every POST alike."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Address("127.0.0.1", server.server_port)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_percentiles_are_those_of_all_replies() -> None:
    sent = [
        Sent(due_at=0.0, answered=answered(pieces=(float(second),))) for second in range(1, 102)
    ]
    found = load_figures([sent])["ttft_ms"]
    assert found == pytest.approx({"p50": 51e3, "p95": 96e3, "p99": 100e3})


def test_refusals_and_cut_replies_add_no_tokens() -> None:
    refused = Answered(status=429, sent_at=0.0, ended_at=0.1, error="full", retry_after="1")
    cut = Answered(status=200, sent_at=0.0, pieces_at=[0.5], ended_at=1.0)
    sent = [Sent(due_at=0.0, answered=one) for one in (refused, cut, answered(tokens=4))]
    figures = load_figures([sent])
    assert (figures["ok"], figures["refused"], figures["failed"]) == (1, 1, 1)
    assert figures["errors"] == ["200: the reply ended early"]
    assert figures["tok_per_s"] == pytest.approx(4.0)
