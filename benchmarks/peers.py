"""Step time of selfdraft and of onnxruntime-genai on the same int4 weights, in one process.

    python -m benchmarks.peers --length 128 --length 4096

Alike on both sides: checkpoint, symmetric int4 with blocks of 32 for every matrix and the LM head,
fp32 embedding and KV cache, int8 arithmetic in the matmuls (accuracy level 4), threads, filled
length, greedy. ``engine``: one pass of the graph in a bare session, buffers bound; ours includes
the sorted candidates, the peer's ends at the logits. ``loop``: the step a user pays for, token
chosen and committed. Long contexts are measured as ``engine`` only, with random caches.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.engines import EngineSteps, LoopSteps, open_backend
from benchmarks.options import artifacts, parser, schedule
from benchmarks.peer_genai import GenaiGraph, GenaiLoop
from benchmarks.record import record, write_records
from benchmarks.timing import Contender, Samples, block_ratios, ratio, take_turns
from selfdraft.manifest import capacity_for

WANTED = 1.10
LONGEST_LOOP = 4_096
"""Above this length the prompt is not computed, only its place in the caches is filled."""


def measure(args: argparse.Namespace, length: int) -> list[dict[str, Any]]:
    """Records of ``engine`` and, where the prompt is short enough, ``loop`` at one length."""
    made = artifacts(args)
    model = made.peer_model()
    backend = open_backend(made.bundle(mtp=False, weights="int4"), threads=args.threads)
    context = length + args.steps + 64
    capacity = capacity_for(context)
    sides: dict[str, tuple[Contender, Contender]] = {
        "engine": (
            EngineSteps(backend, length=length, capacity=capacity),
            GenaiGraph(model, length=length, capacity=capacity, threads=args.threads),
        )
    }
    if length <= LONGEST_LOOP:
        sides["loop"] = (
            LoopSteps(backend, length=length, context_length=context),
            GenaiLoop(model, length=length, context_length=context, threads=args.threads),
        )
    contenders = {
        f"{kind} {who}": contender
        for kind, pair in sides.items()
        for who, contender in zip(("selfdraft", "genai"), pair, strict=True)
    }
    samples = take_turns(contenders, schedule(args))
    return [
        _record(kind, length, samples[f"{kind} selfdraft"], samples[f"{kind} genai"], args)
        for kind in sides
    ]


def _record(
    kind: str, length: int, ours: Samples, peer: Samples, args: argparse.Namespace
) -> dict[str, Any]:
    found = ratio(ours, peer)
    judged = kind == "loop" and length == 128
    figures = {
        "kind": kind,
        "length": length,
        "selfdraft": ours.summary(),
        "genai": peer.summary(),
        "ratio": round(found, 4),
        "ratio_quartiles": [round(value, 4) for value in block_ratios(ours, peer)],
        "figure": f"{found:.3f}x ({ours.median_ms:.2f} / {peer.median_ms:.2f} ms)",
        "wanted": f"<= {WANTED:.2f}x" if judged else "",
        "met": found <= WANTED if judged else None,
    }
    return record(f"peers int4 {kind} at {length}", figures, threads=args.threads)


def main() -> None:
    """Command line."""
    options = parser(__doc__)
    options.add_argument("--length", type=int, action="append", help="cached tokens (128)")
    args = options.parse_args()
    for length in args.length or [128]:
        records = measure(args, length)
        write_records(records, args.json)
        for entry in records:
            print(f"{entry['name']}: {entry['figure']}")


if __name__ == "__main__":
    main()
