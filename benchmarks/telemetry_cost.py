"""What telemetry costs a decode step: counting, the window, tests of change, and looks at alerts.

    python -m benchmarks.telemetry_cost

Steps of several tasks, positions and depths go through one instrument whose window is full: each step
also takes an old one out. Every 128th looks at all rules; the mean includes those.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import numpy as np

from benchmarks.options import parser
from benchmarks.record import record, write_records
from selfdraft.baseline import Baseline, BucketCounts, DraftCounts, TaskBaseline
from selfdraft.runtime.telemetry.meter import Telemetry

WANTED_US = 5.0
STEPS_PER_S = 100.0
WINDOW_S = 300.0
TASKS = ("chat", "code", "summary")
BLOCK = 1000
COUNTS = DraftCounts(drafted=(1000, 1000), accepted=(850, 700))


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The record."""
    now = [0.0]
    baseline = Baseline(
        text="t",
        text_sha256="0" * 64,
        tokens=1000,
        method="decoded",
        tasks=tuple(
            TaskBaseline(
                task=task,
                counts=COUNTS,
                buckets=(BucketCounts(start=0, end=4096, counts=COUNTS),),
            )
            for task in TASKS
        ),
    )
    telemetry = Telemetry(baseline=baseline, window_s=WINDOW_S, clock=lambda: now[0])
    rng = random.Random(0)
    labels = [telemetry.labels(task, "greedy", 0.0) for task in TASKS]
    steps = []
    for _ in range(BLOCK):
        drafted = rng.choice([1, 2, 2, 3])
        accepted = next((i for i in range(drafted) if rng.random() > 0.85), drafted)
        steps.append((rng.choice(labels), rng.randrange(0, 30_000), drafted, accepted))
    blocks = []
    warm = int(WINDOW_S * STEPS_PER_S) // BLOCK + 2
    for index in range(warm + args.rounds * 4):
        start = time.perf_counter()
        for label, position, drafted, accepted in steps:
            now[0] += 1 / STEPS_PER_S
            telemetry.note_step(
                label, position=position, drafted=drafted, accepted=accepted, tokens=accepted + 1
            )
        if index >= warm:
            blocks.append((time.perf_counter() - start) / BLOCK * 1e6)
    found = float(np.median(blocks))
    figures = {
        "us_a_step": {
            "median": round(found, 2),
            "p10": round(float(np.percentile(blocks, 10)), 2),
            "p90": round(float(np.percentile(blocks, 90)), 2),
        },
        "window_steps": int(WINDOW_S * STEPS_PER_S),
        "figure": f"{found:.1f} µs a step",
        "wanted": f"<= {WANTED_US:.0f} µs",
        "met": found <= WANTED_US,
    }
    return [record("telemetry", figures, threads=1)]


def main() -> None:
    """Command line."""
    args = parser(__doc__).parse_args()
    records = measure(args)
    write_records(records, args.json)
    for entry in records:
        print(f"{entry['name']}: {entry['figure']}")


if __name__ == "__main__":
    main()
