"""Whether states stay in place: a step's time follows its length, not the capacity.

    python -m benchmarks.in_place

Times the int4 backbone at lengths 64 and 8,000 in caches of 8K and 64K slots, one engine, turns
interleaved; then profiles decode steps at the larger capacity and lists nodes that copy a cache.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.engines import EngineSteps, LoopSteps, open_backend
from benchmarks.options import artifacts, parser, schedule
from benchmarks.ort_profile import NodeTime, cache_sized_copies, read_nodes, time_by_op
from benchmarks.record import record, write_records
from benchmarks.timing import Contender, block_ratios, ratio, take_turns
from selfdraft.manifest import capacity_for

LENGTHS = (64, 8_000)
CAPACITIES = (8_192, 65_536)
WANTED = 0.05
PROFILED_STEPS = 10
PROFILED_PROMPT = 64
COPY_SHARE = 4
"""A node counts as copying a cache from a quarter of one state's bytes on."""


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One record a length: step time at the larger capacity by that at the smaller one."""
    bundle = artifacts(args).bundle(mtp=False, weights="int4")
    backend = open_backend(bundle, threads=args.threads)
    records = []
    for length in LENGTHS:
        contenders: dict[str, Contender] = {
            str(capacity): EngineSteps(backend, length=length, capacity=capacity)
            for capacity in CAPACITIES
        }
        samples = take_turns(contenders, schedule(args))
        small, large = (samples[str(capacity)] for capacity in CAPACITIES)
        found = ratio(large, small)
        figures = {
            "length": length,
            "capacities": list(CAPACITIES),
            "by_capacity": {name: entry.summary() for name, entry in samples.items()},
            "ratio": round(found, 4),
            "ratio_quartiles": [round(value, 4) for value in block_ratios(large, small)],
            "figure": f"{found:.3f}x ({large.median_ms:.2f} / {small.median_ms:.2f} ms)",
            "wanted": f"within {WANTED:.0%}",
            "met": abs(found - 1) < WANTED,
        }
        records.append(record(f"in place at length {length}", figures, threads=args.threads))
    return records


def profile_steps(args: argparse.Namespace, *, drafts: int) -> list[dict[str, Any]]:
    """The record of the cache-sized copies in both graphs over some decode steps (none are wanted)."""
    context = CAPACITIES[-1] - 128
    bundle = artifacts(args).bundle(mtp=True, weights="fp32")
    with tempfile.TemporaryDirectory() as folder:
        backend = open_backend(bundle, threads=args.threads, profile=Path(folder) / "step")
        loop = LoopSteps(backend, length=PROFILED_PROMPT, context_length=context, drafts=drafts)
        loop.prepare()
        for _ in range(PROFILED_STEPS):
            loop.step()
        files = {name: Path(file) for name, file in backend.end_profiling().items()}
        profiles = {name: file for name, file in files.items() if name == "backbone" or drafts}
        threshold = state_bytes(backend, capacity_for(context)) // COPY_SHARE
        copies = {name: cache_sized_copies(file, threshold) for name, file in profiles.items()}
        tops = {name: top_nodes(read_nodes(file)) for name, file in profiles.items()}
    found = [f"{graph}: {node.op} {node.name}" for graph, nodes in copies.items() for node in nodes]
    figures = {
        "capacity": capacity_for(context),
        "threshold_bytes": threshold,
        "copies": found,
        "time_by_op": tops,
        "figure": f"{len(found)} copies of {threshold / 2**20:.0f} MiB or more",
        "wanted": "0",
        "met": not found,
    }
    return [record(f"in place profile, {drafts} drafts", figures, threads=args.threads)]


def state_bytes(backend: Any, capacity: int) -> int:
    """Bytes of the smallest state at ``capacity``, one slot."""
    states = backend.allocate(batch=1, capacity=capacity)
    return int(min(tensor.array.nbytes for tensor in states.tensors.values()))


def top_nodes(nodes: list[NodeTime], count: int = 12) -> list[list[Any]]:
    """``[operator, nodes, microseconds a run]`` of the slowest operators."""
    runs = max(node.runs for node in nodes)  # fails on an empty profile, which proves nothing
    return [[op, number, round(us / runs, 1)] for op, number, us in time_by_op(nodes)[:count]]


def main() -> None:
    """Command line."""
    args = parser(__doc__).parse_args()
    records = [*measure(args), *profile_steps(args, drafts=1)]
    write_records(records, args.json)
    for entry in records:
        print(f"{entry['name']}: {entry['figure']}")


if __name__ == "__main__":
    main()
