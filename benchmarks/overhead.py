"""What the decode loop costs beyond its engine: step time less the time inside the two graphs.

    python -m benchmarks.overhead

fp32 weights, greedy, K = 0, 1 and 2; the choice of tokens, bookkeeping and results are overhead.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from benchmarks.engines import LoopSteps, TimedEngine, open_backend
from benchmarks.options import artifacts, parser
from benchmarks.record import record, write_records

WANTED_US = 200.0
WARMUP = 5


def measure(args: argparse.Namespace, drafts: int) -> list[dict[str, Any]]:
    """The record of one number of drafts."""
    bundle = artifacts(args).bundle(mtp=True, weights="fp32")
    engine = TimedEngine(open_backend(bundle, threads=args.threads), time.perf_counter)
    steps = args.rounds * args.steps
    loop = LoopSteps(
        engine,
        length=args.length,
        context_length=args.length + (steps + WARMUP + 8) * (drafts + 1),
        drafts=drafts,
    )
    loop.prepare()
    for _ in range(WARMUP):
        loop.step()
    overhead_us, step_us = [], []
    for _ in range(steps):
        engine.engine_s, start = 0.0, time.perf_counter()
        loop.step()
        spent = time.perf_counter() - start
        step_us.append(spent * 1e6)
        overhead_us.append((spent - engine.engine_s) * 1e6)
    found = float(np.median(overhead_us))
    figures = {
        "drafts": drafts,
        "length": args.length,
        "overhead_us": {
            "median": round(found, 1),
            "p10": round(float(np.percentile(overhead_us, 10)), 1),
            "p90": round(float(np.percentile(overhead_us, 90)), 1),
        },
        "step_us_median": round(float(np.median(step_us)), 1),
        "steps": steps,
        "figure": f"{found:.0f} µs a step",
        "wanted": f"<= {WANTED_US:.0f} µs",
        "met": found <= WANTED_US,
    }
    return [record(f"loop overhead K={drafts}", figures, threads=args.threads)]


def main() -> None:
    """Command line."""
    options = parser(__doc__)
    options.add_argument("--length", type=int, default=128, help="prompt tokens")
    args = options.parse_args()
    records = [entry for drafts in (0, 1, 2) for entry in measure(args, drafts)]
    write_records(records, args.json)
    for entry in records:
        print(f"{entry['name']}: {entry['figure']}")


if __name__ == "__main__":
    main()
