"""Speed-up of self-speculation at a forced acceptance (synthetic), fp32 weights.

    python -m benchmarks.speedup

A random head never agrees with its backbone, so the verdict is replaced by a coin with the given
rates. Everything else runs in full: both graphs, the choice of tokens, the resync. Plain and
speculative decoding take turns in one process on one bundle; compared are the median times of a
step by the tokens that a step delivers.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from benchmarks.engines import LoopSteps, open_backend
from benchmarks.options import artifacts, parser, schedule
from benchmarks.record import record, write_records
from benchmarks.timing import Samples, take_turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One setting and the speed-up wanted of it."""

    rates: tuple[float, ...]
    """Chance that draft i is accepted when those before it were."""
    draft_vocab: int | None
    wanted: float | None = None


CASES = (
    Case(rates=(0.87,), draft_vocab=None, wanted=1.2),
    Case(rates=(0.87,), draft_vocab=8192, wanted=1.4),
    Case(rates=(0.87, 0.7), draft_vocab=None),
    Case(rates=(0.87, 0.7), draft_vocab=8192, wanted=1.6),
)


def measure(args: argparse.Namespace, case: Case) -> list[dict[str, Any]]:
    """The record of one case."""
    bundle = artifacts(args).bundle(mtp=True, weights="fp32", draft_vocab=case.draft_vocab)
    backend = open_backend(bundle, threads=args.threads)
    drafts = len(case.rates)
    context = args.length + (args.steps + 16) * (drafts + 1)
    plain = LoopSteps(backend, length=args.length, context_length=context)
    speculative = LoopSteps(
        backend,
        length=args.length,
        context_length=context,
        drafts=drafts,
        forced_acceptance=case.rates,
    )
    samples = take_turns({"plain": plain, "speculative": speculative}, schedule(args))
    found = speedup(samples["plain"], samples["speculative"], case.rates)
    head = f"{case.draft_vocab} draft tokens" if case.draft_vocab else "full draft head"
    name = f"speed-up K={drafts} {case.rates}, {head}"
    figures = {
        "synthetic": True,
        "rates": list(case.rates),
        "draft_vocab": case.draft_vocab,
        "length": args.length,
        "plain": samples["plain"].summary(),
        "speculative": samples["speculative"].summary(),
        "expected_tokens_per_step": round(expected_tokens(case.rates), 4),
        "speedup": round(found, 4),
        "figure": f"{found:.2f}x (synthetic)",
        "wanted": f">= {case.wanted:.1f}x" if case.wanted else "",
        "met": found >= case.wanted if case.wanted else None,
    }
    return [record(name, figures, threads=args.threads)]


def speedup(plain: Samples, speculative: Samples, rates: tuple[float, ...]) -> float:
    """Tokens by second of the one by the other, at the tokens a step that the rates mean.

    The coin's own luck in a short run is left out of the figure; the record shows it.
    """
    return expected_tokens(rates) * plain.median_ms / speculative.median_ms


def expected_tokens(rates: tuple[float, ...]) -> float:
    """Tokens of a step: one, and each draft when it and all before it are accepted."""
    total, chance = 1.0, 1.0
    for rate in rates:
        chance *= rate
        total += chance
    return total


def main() -> None:
    """Command line."""
    options = parser(__doc__)
    options.add_argument("--length", type=int, default=128, help="prompt tokens")
    args = options.parse_args()
    records = [entry for case in CASES for entry in measure(args, case)]
    write_records(records, args.json)
    for entry in records:
        print(f"{entry['name']}: {entry['figure']}")


if __name__ == "__main__":
    main()
