"""Sparse attention at 4K, 32K and 128K tokens: against dense, against a peer, and speculative.

    python -m benchmarks.long_context

Some five minutes and 12 GiB of memory; models are made at the first run. Caches are filled with
random rows (``selfdraft.cli.synthetic_cache``), so no prompt is computed. Ours is the whole decode
loop, one token a step; ``GroupQueryAttention`` is the operator alone in each layer, to which our own
step without a context is added; the peer's graph runs without its loop. Budget: 4,096 tokens.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks.engines import open_backend
from benchmarks.filled_loop import FilledCache, FilledLoop
from benchmarks.group_query import GroupQuerySteps
from benchmarks.options import artifacts, parser, schedule
from benchmarks.peer_genai import GenaiGraph
from benchmarks.record import record, write_records
from benchmarks.speedup import expected_tokens
from benchmarks.timing import Contender, Samples, Schedule, take_turns
from selfdraft.cli.bench_filled_record import row_overlap
from selfdraft.cli.measure_filled import FilledOptions, FilledSeries, measure_filled
from selfdraft.cli.synthetic_cache import Content
from selfdraft.manifest import capacity_for
from selfdraft.runtime.ort import OrtBackend

BASE, FULL, ABOVE, LONG, LONGEST = 64, 4_064, 4_200, 32_768, 130_900
"""Cached rows: none to speak of, the budget when the steps end, just above it, 32K, and 128K with room
for a reply."""
ROOM = 32
RATE = 0.87
DRAFT_VOCAB = 8_192
CONTENTS = {"alike": Content(block_spread=0.1), "apart": Content(block_spread=0.0)}
"""Neighbouring rows that choose nearly the same blocks, and rows that choose for themselves."""


class Sides:
    """Every contender on the int4 model, over one cache a length."""

    def __init__(self, args: argparse.Namespace, *, peer: bool) -> None:
        made = artifacts(args)
        self._threads = args.threads
        sparse = made.bundle(mtp=False, weights="int4", sparse=True)
        self._sparse = open_backend(sparse, threads=args.threads)
        self._dense = open_backend(made.bundle(mtp=False, weights="int4"), threads=args.threads)
        self._peer = made.peer_model() if peer else None
        self._caches = {
            length: FilledCache(self._sparse, length=length, room=ROOM)
            for length in (BASE, FULL, ABOVE, LONG, LONGEST)
        }

    def sparse(self, length: int) -> FilledLoop:
        """Our loop with block-sparse attention."""
        return FilledLoop(self._sparse, self._caches[length], attention="sparse")

    def dense(self, length: int) -> FilledLoop:
        """Our loop on a dense bundle."""
        return FilledLoop(self._dense, self._caches[length], attention="dense")

    def group_query(self, length: int) -> GroupQuerySteps:
        """The operator of onnxruntime, all layers, nothing else."""
        return GroupQuerySteps(
            self._sparse.manifest.model,
            self._caches[length].layers(),
            length=length,
            threads=self._threads,
        )

    def peer(self, length: int) -> GenaiGraph | None:
        """onnxruntime-genai's graph."""
        if self._peer is None:
            return None
        capacity = capacity_for(length + ROOM)
        return GenaiGraph(self._peer, length=length, capacity=capacity, threads=self._threads)


def measure_int4(args: argparse.Namespace, *, peer: bool) -> list[dict[str, Any]]:
    """Records of the step times and of every ratio wanted of them."""
    sides = Sides(args, peer=peer)
    light: dict[str, Contender] = {
        "base": sides.dense(BASE),
        f"dense {FULL}": sides.dense(FULL),
        f"gqa {FULL}": sides.group_query(FULL),
        **{f"sparse {n}": sides.sparse(n) for n in (FULL, ABOVE, LONG, LONGEST)},
    }
    samples = take_turns(light, schedule(args))
    heavy: dict[str, Contender] = {
        f"{name} {length}": make(length)
        for length in (LONG, LONGEST)
        for name, make in (("dense", sides.dense), ("gqa", sides.group_query))
    }
    heavy |= {f"sparse again {length}": light[f"sparse {length}"] for length in (LONG, LONGEST)}
    graph = sides.peer(LONG)
    if graph is not None:
        heavy["genai 32768"] = graph
    samples |= take_turns(heavy, _shorter(args))
    blocks = {name: _blocks(loop) for name, loop in light.items() if isinstance(loop, FilledLoop)}
    return [*_ratios(samples, args), _times(samples, blocks, args)]


def _shorter(args: argparse.Namespace) -> Schedule:
    """Fewer steps: a dense one takes half a second at 128K."""
    return Schedule(rounds=max(1, args.rounds // 2), steps=max(1, args.steps // 4), warmup=1)


def _ratios(samples: dict[str, Samples], args: argparse.Namespace) -> list[dict[str, Any]]:
    ms = {name: entry.median_ms for name, entry in samples.items()}

    def best_dense(length: int) -> float:
        return min(ms[f"dense {length}"], ms["base"] + ms[f"gqa {length}"])

    found = [
        _ratio("int4 4K sparse by best dense", ms[f"sparse {FULL}"], best_dense(FULL), most=1.10),
        _ratio(
            "int4 128K by 4.2K, sparse", ms[f"sparse {LONGEST}"], ms[f"sparse {ABOVE}"], most=1.4
        ),
        _ratio(
            "int4 128K best dense by sparse",
            best_dense(LONGEST),
            ms[f"sparse again {LONGEST}"],
            least=12.0,
        ),
        _ratio("int4 32K best dense by sparse", best_dense(LONG), ms[f"sparse again {LONG}"]),
    ]
    if "genai 32768" in ms:
        ours = ms[f"sparse again {LONG}"]
        found.append(_ratio("int4 32K genai by sparse", ms["genai 32768"], ours, least=3.5))
    return [record(f["name"], f, threads=args.threads) for f in found]


def _ratio(
    name: str,
    numerator: float,
    denominator: float,
    *,
    most: float | None = None,
    least: float | None = None,
) -> dict[str, Any]:
    found = numerator / denominator
    wanted = f"<= {most:.2f}x" if most else f">= {least:.1f}x" if least else ""
    met = found <= most if most else found >= least if least else None
    return {
        "name": name,
        "synthetic": True,
        "ratio": round(found, 4),
        "figure": f"{found:.2f}x ({numerator:.2f} / {denominator:.2f} ms)",
        "wanted": wanted,
        "met": met,
    }


def _blocks(loop: FilledLoop) -> list[int]:
    """Blocks that each sparse layer read, of the last block of steps."""
    read = loop.backend.blocks_read
    return np.median(read, axis=0).astype(int).tolist() if read else []


def _times(
    samples: dict[str, Samples], blocks: dict[str, list[int]], args: argparse.Namespace
) -> dict[str, Any]:
    shown = ", ".join(f"{name} {entry.median_ms:.2f}" for name, entry in samples.items())
    figures = {
        "synthetic": True,
        "content": CONTENTS["alike"].described(),
        "steps": {name: entry.summary() for name, entry in samples.items()},
        "blocks_read": blocks,
        "figure": f"ms: {shown}",
        "wanted": "",
        "met": None,
    }
    return record("int4 step times by cached rows", figures, threads=args.threads)


def measure_speculative(args: argparse.Namespace, kind: str) -> list[dict[str, Any]]:
    """Speculative by plain decoding, both sparse, fp32 weights: one record a length."""
    bundle = artifacts(args).bundle(mtp=True, weights="fp32", draft_vocab=DRAFT_VOCAB, sparse=True)
    backend: OrtBackend = open_backend(bundle, threads=args.threads)
    options = FilledOptions(
        contexts=(LONG, LONGEST + ROOM),
        attentions=("sparse",),
        drafts=(1,),
        tokens=24,
        repeats=max(1, args.rounds // 2),
        forced_acceptance=(RATE,),
        content=CONTENTS[kind],
    )
    checked: Any = backend
    measured = measure_filled(checked, options).measured
    pairs = zip(measured[::2], measured[1::2], strict=True)
    return [_speedup(plain, drafting, kind, options, args) for plain, drafting in pairs]


def _speedup(
    plain: FilledSeries,
    drafting: FilledSeries,
    kind: str,
    options: FilledOptions,
    args: argparse.Namespace,
) -> dict[str, Any]:
    found = expected_tokens((RATE,)) * plain.step_ms / drafting.step_ms
    overlap = row_overlap(drafting, plain)
    assert overlap is not None
    judged = kind == "alike"
    figures = {
        "synthetic": True,
        "content": options.content.described(),
        "rates": [RATE],
        "draft_vocab": DRAFT_VOCAB,
        "context": plain.context,
        "plain_ms": round(plain.step_ms, 4),
        "speculative_ms": round(drafting.step_ms, 4),
        "blocks_read": {"plain": plain.blocks_read, "speculative": drafting.blocks_read},
        "row_overlap": round(overlap, 4),
        "speedup": round(found, 4),
        "figure": f"{found:.2f}x (synthetic), rows share {overlap:.0%}",
        "wanted": ">= 1.3x" if judged else "",
        "met": found >= 1.3 if judged else None,
    }
    name = f"speculative by plain, sparse fp32 at {plain.context}, rows {kind}"
    return record(name, figures, threads=args.threads)


def main() -> None:
    """Command line."""
    options = parser(__doc__)
    options.add_argument("--no-peer", action="store_true", help="leave onnxruntime-genai out")
    args = options.parse_args()
    records = measure_int4(args, peer=not args.no_peer)
    for kind in CONTENTS:
        records += measure_speculative(args, kind)
    write_records(records, args.json)
    for entry in records:
        print(f"{entry['name']}: {entry['figure']} [{entry['wanted']}]")


if __name__ == "__main__":
    main()
