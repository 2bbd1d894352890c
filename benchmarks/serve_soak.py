"""A server under mixed load for a long time: right texts, clear refusals, no leak, flat memory.

    python -m benchmarks.serve_soak --minutes 30

Starts ``selfdraft serve`` on a free loopback port. Every request is asked alone first; then clients send
them together, hang up in mid-stream, send malformed bodies, and every minute ten times more requests than
fit come at once. Each reply must be the one that came alone. Memory is that of the server's process.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.options import parser
from benchmarks.process_memory import ProcessWatch, Reading, typical
from benchmarks.record import record, write_records
from benchmarks.soak_load import MAX_BODY, Load
from selfdraft.cli.load.address import Address
from selfdraft.cli.load.asking import health
from selfdraft.cli.load.started import started_server

SLOTS, WAITING = 4, 8
CLIENTS = 8
BURST = 10 * (SLOTS + WAITING)
BURST_EVERY_S = 60.0
MOST_MINUTES = 240.0
GROWTH = 1.02
"""Memory at the end by memory in the middle."""
MORE_FILES = 8
PROMPTS = (
    "What is a mountain?",
    "Tell me about rivers and the sea.",
    "Why do birds fly south in winter? Explain it in a few sentences.",
    "List three animals.",
)


class Tally:
    """What came of all requests, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.complaints: list[str] = []

    def add(self, kind: str, outcome: str) -> None:
        """Count one request."""
        with self._lock:
            known = outcome in ("ok", "refused")
            self.counts[f"{kind} {outcome if known else 'failed'}"] += 1
            if not known:
                self.complaints.append(f"{kind}: {outcome}")


def measure(args: argparse.Namespace, bundle: Path) -> dict[str, Any]:
    """The record."""
    options = ["--slots", SLOTS, "--max-waiting", WAITING, "--max-body", MAX_BODY // 1024]
    options += ["--threads", args.threads, "--drafts", args.drafts, "--backend", args.backend]
    with started_server(bundle, *options) as server:
        load, tally = Load(server.address, list(PROMPTS), seed=args.seed), Tally()
        load.learn()
        watch = ProcessWatch(server.pid)
        before = watch.look()
        watch.start()
        _run(load, tally, minutes=args.minutes, seed=args.seed)
        left = _left(server.address)
        watch.stop()
        after = watch.look()
    return _record(args, tally, watch.readings, left, (before, after))


def _run(load: Load, tally: Tally, *, minutes: float, seed: int) -> None:
    """Clients in turns with bursts, until the time is over."""
    until = time.monotonic() + 60 * minutes

    def client(number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        while time.monotonic() < until:
            tally.add(*_attempt(load, rng))
            time.sleep(rng.random() * 0.1)

    def bursts() -> None:
        rng = random.Random(seed)
        while (now := time.monotonic()) < until:
            _together([lambda: tally.add(*_attempt(load, rng, burst=True))] * BURST)
            wait = min(BURST_EVERY_S - (time.monotonic() - now), until - time.monotonic())
            time.sleep(max(wait, 0))

    _together([*(lambda n=n: client(n) for n in range(CLIENTS)), bursts])


def _attempt(load: Load, rng: random.Random, *, burst: bool = False) -> tuple[str, str]:
    try:
        return load.whole(rng) if burst else load.step(rng)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a complaint
        return "request", f"{type(error).__name__}: {error}"


def _together(work: list[Any]) -> None:
    threads = [threading.Thread(target=one, daemon=True) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _left(address: Address, patience_s: float = 20.0) -> int:
    """Requests that the server still has when all clients are gone."""
    until = time.monotonic() + patience_s
    while True:
        now = health(address)
        left = int(now["running"] + now["waiting"])
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.1)


def _record(
    args: argparse.Namespace,
    tally: Tally,
    readings: list[Reading],
    left: int,
    ends: tuple[Reading, Reading],
) -> dict[str, Any]:
    start, middle, end = (
        typical(readings, *shares) for shares in ((0.05, 0.15), (0.45, 0.55), (0.9, 1.0))
    )
    growth = end.rss_bytes / middle.rss_bytes
    more_files = ends[1].files - ends[0].files
    refused = sum(n for name, n in tally.counts.items() if name.endswith("refused"))
    flat = growth <= GROWTH and more_files <= MORE_FILES
    rss = " → ".join(f"{one.rss_bytes / 2**20:.1f}" for one in (start, middle, end))
    figures = {
        "minutes": args.minutes,
        "bundle": str(args.bundle or "demo"),
        "drafts": args.drafts,
        "requests": sum(tally.counts.values()),
        "outcomes": dict(sorted(tally.counts.items())),
        "complaints": tally.complaints[:20],
        "num_complaints": len(tally.complaints),
        "refused": refused,
        "left_in_slots": left,
        "rss_bytes": {
            name: one.rss_bytes
            for name, one in (("start", start), ("middle", middle), ("end", end))
        },
        "rss_bytes_before": ends[0].rss_bytes,
        "rss_bytes_by_minute": _by_minute(readings),
        "threads_before_after": [one.threads for one in ends],
        "files_before_after": [one.files for one in ends],
        "end_by_middle": round(growth, 4),
        "figure": f"RSS {rss} MiB, {len(tally.complaints)} complaints, {left} requests left",
        "wanted": f"end <= {GROWTH} x middle, no complaint, none left",
        "met": flat and not tally.complaints and not left and refused > 0,
    }
    return record("serve_soak", figures, threads=args.threads)


def _by_minute(readings: list[Reading]) -> list[int]:
    minutes: dict[int, int] = {}
    for one in readings:
        minutes[int(one.at_s // 60)] = one.rss_bytes
    return list(minutes.values())


def _bundle(args: argparse.Namespace) -> Path:
    if args.bundle:
        return Path(args.bundle)
    from selfdraft.cli.demo_bundle import demo_bundle, find_checkpoint

    return demo_bundle(find_checkpoint(None), args.work, quiet=True)


def main() -> None:
    """Command line."""
    made = parser(__doc__)
    made.add_argument("--minutes", type=float, default=30.0, help="length of the load")
    made.add_argument("--bundle", type=Path, help="bundle to serve; the demo's by default")
    made.add_argument("--drafts", default="auto", help="drafts of a step")
    made.add_argument("--backend", default="auto", help="engine")
    made.add_argument("--seed", type=int, default=0, help="order of the requests")
    args = made.parse_args()
    if not 0 < args.minutes <= MOST_MINUTES:
        made.error(f"--minutes is more than 0 and at most {MOST_MINUTES:.0f}")
    entry = measure(args, _bundle(args))
    write_records([entry], args.json)
    print(f"{entry['name']}: {entry['figure']} (wanted: {entry['wanted']})")
    sys.exit(0 if entry["met"] else 1)


if __name__ == "__main__":
    main()
