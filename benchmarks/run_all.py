"""Every benchmark, one after the other: JSON lines and a table in ``out/bench``.

    python -m benchmarks.run_all            (or: make bench)

Needs an idle machine, 12 GiB of memory and some fifteen minutes; models are made at the first run.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks import (
    in_place,
    long_context,
    overhead,
    peers,
    sampling_cost,
    speedup,
    telemetry_cost,
)
from benchmarks.options import parser
from benchmarks.record import markdown_table, write_records

Records = list[dict[str, Any]]
PEER_LENGTHS = (128, 4_096, 32_768)
LONG_LENGTH = 8_192
BUSY_LOAD = 0.5
"""A load above this before the start is said: the figures will be worse than the machine."""


def benchmarks(args: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Records]]]:
    """Name and function of each benchmark, in order."""
    for length in PEER_LENGTHS:
        yield f"peers at {length}", partial(peers.measure, _shorter(args, length), length)
    for case in speedup.CASES:
        yield f"speed-up {case.rates}", partial(speedup.measure, args, case)
    for drafts in (0, 1, 2):
        yield f"overhead, {drafts} drafts", partial(overhead.measure, args, drafts)
    for vocab_size in sampling_cost.VOCABULARIES:
        yield f"drawing from {vocab_size}", partial(sampling_cost.measure, args, vocab_size)
    yield "telemetry", partial(telemetry_cost.measure, args)
    yield "in place", partial(in_place.measure, args)
    for drafts in (0, 1):
        yield f"profile, {drafts} drafts", partial(in_place.profile_steps, args, drafts=drafts)
    yield "long context", partial(long_context.measure_int4, args, peer=True)
    for kind in long_context.CONTENTS:
        yield f"speculative sparse, {kind}", partial(long_context.measure_speculative, args, kind)


def _shorter(args: argparse.Namespace, length: int) -> argparse.Namespace:
    """Fewer steps where a step takes long."""
    if length < LONG_LENGTH:
        return args
    return argparse.Namespace(**{**vars(args), "steps": max(1, args.steps // 4)})


def main() -> None:
    """Command line; exit status 1 when a figure misses what is wanted of it."""
    options = parser(__doc__)
    options.add_argument("--length", type=int, default=128, help="prompt tokens where not swept")
    args = options.parse_args()
    args.json = args.json or args.work / "results.jsonl"
    load = os.getloadavg()[0]
    if load > BUSY_LOAD:
        print(f"note: the load is {load:.1f} before the start; figures need an idle machine")
    records: Records = []
    for name, run in benchmarks(args):
        start = time.perf_counter()
        found = run()
        write_records(found, args.json)
        records += found
        for entry in found:
            print(f"{entry['name']}: {entry['figure']} [{entry['wanted']}]", flush=True)
        print(f"  ({name}: {time.perf_counter() - start:.0f} s)", file=sys.stderr)
    table = args.json.with_suffix(".md")
    table.write_text(markdown_table(records), encoding="utf-8")
    print(f"written: {args.json} and {table}")
    sys.exit(any(entry["met"] is False for entry in records))


if __name__ == "__main__":
    main()
