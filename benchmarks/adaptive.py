"""Adaptive drafting by every fixed number of drafts, acceptance forced (synthetic), fp32 weights.

    python -m benchmarks.adaptive

One reply of three kinds of text: easy, random, and both in turns of 64 tokens. A coin by position decides
on each draft, the same for all contenders, so all meet the same text. They take turns, a reply each; a
phase counts after its first 64 tokens, as the median over the turns. ``--sweep`` forces one rate for a whole
reply instead, 0.0 to 1.0, and shows what is chosen beside the fixed number that the medians say is best.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.engines import open_backend
from benchmarks.options import artifacts, parser
from benchmarks.record import record, write_records
from selfdraft.runtime.adaptive.measure import MOST_DRAFTS, adaptive_drafts
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.ort import OrtBackend
from selfdraft.runtime.request import Request
from selfdraft.runtime.sampling import SamplingParams

EASY, RANDOM = (0.92, 0.85, 0.8, 0.75), (0.05,) * 4
TURN = 64
SETTLED = 64
"""Tokens after which a phase counts."""
NEAR_BEST, NEAR_PLAIN = 0.97, 0.97
AUTO = "auto"
Rates = Callable[[int], Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """When the tokens of one reply came."""

    tokens: list[int]
    seconds: list[float]
    drafts: list[int]
    """Drafts of each step."""

    def between(self, start: int, end: int) -> float:
        """Seconds from one token to another."""
        first, last = np.interp([start, end], self.tokens, self.seconds)
        return float(last - first)


def alternating(position: int) -> Sequence[float]:
    """Easy and random text in turns."""
    return EASY if position // TURN % 2 else RANDOM


def workload(length: int, phase: int) -> Rates:
    """Easy, random, alternating: ``phase`` tokens each, behind a prompt of ``length``."""
    kinds: list[Rates] = [lambda _: EASY, lambda _: RANDOM, alternating]
    return lambda position: kinds[min((position - length) // phase, 2)](position)


def run_reply(
    backend: OrtBackend, drafts: int | str, rates: Rates, *, length: int, tokens: int
) -> Track:
    """One reply by a loop of its own."""
    checked: Any = backend  # the protocol cannot say that a backend takes its own states
    policy: Any = adaptive_drafts(checked) or 0 if drafts == AUTO else drafts
    loop = DecodeLoop(
        checked,
        drafts=policy,
        context_length=length + tokens + 2 * MOST_DRAFTS,
        forced_acceptance=rates,
    )
    vocab = backend.manifest.model.vocab_size
    prompt = np.random.default_rng(0).integers(vocab, size=length).tolist()
    request = Request(
        prompt_ids=tuple(prompt), sampling=SamplingParams(temperature=0.0), ignore_eos=True
    )
    loop.begin({0: request})
    track = Track(tokens=[0], seconds=[0.0], drafts=[])
    start = time.perf_counter()
    while track.tokens[-1] < tokens:
        done = len(loop.step())
        drafting = loop._drafting
        track.drafts.append(drafting.drafts if drafting else 0)
        track.tokens.append(track.tokens[-1] + done)
        track.seconds.append(time.perf_counter() - start)
    return track


def take_turns(
    backend: OrtBackend, rates: Rates, args: argparse.Namespace, *, tokens: int
) -> dict[int | str, list[Track]]:
    """Replies of every fixed number and of ``auto``, in an order that turns round."""
    names: list[int | str] = [*args.fixed, AUTO]
    tracks: dict[int | str, list[Track]] = {name: [] for name in names}
    for name in names:  # buffers and threads settle
        run_reply(backend, name, rates, length=args.length, tokens=16)
    for turn in range(args.turns):
        for name in names if (turn + args.first_turn) % 2 == 0 else reversed(names):
            tracks[name].append(run_reply(backend, name, rates, length=args.length, tokens=tokens))
    return tracks


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Records of the three phases."""
    backend = _backend(args)
    tracks = take_turns(backend, workload(args.length, args.phase), args, tokens=3 * args.phase)
    records = []
    for index, name in enumerate(("easy", "random", "alternating")):
        start, end = index * args.phase, (index + 1) * args.phase
        whole = _medians(tracks, start, end)
        settled = _medians(tracks, start + SETTLED, end)
        fixed = {k: seconds for k, seconds in settled.items() if k != AUTO}
        best = min(fixed, key=lambda k: fixed[k])
        by_best, by_plain = fixed[best] / settled[AUTO], whole[0] / whole[AUTO]
        figures = {
            "synthetic": True,
            "phase_tokens": args.phase,
            "turns": args.turns,
            "ms_a_token": {
                str(k): round(1e3 * seconds / (args.phase - SETTLED), 3)
                for k, seconds in settled.items()
            },
            "best_fixed": best,
            "speed_by_best_fixed": round(by_best, 4),
            "speed_by_plain_whole_phase": round(by_plain, 4),
            "figure": f"{by_best:.3f}x the best fixed number ({best}), {by_plain:.2f}x plain (synthetic)",
            "wanted": f">= {NEAR_BEST}x the best, >= {NEAR_PLAIN}x plain",
            "met": by_best >= NEAR_BEST and by_plain >= NEAR_PLAIN,
        }
        records.append(record(f"adaptive drafting, {name} text", figures, threads=args.threads))
    return records


def sweep(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A record for each forced rate, alike at all positions."""
    backend, records = _backend(args), []
    for tenth in range(11):
        rates = (tenth / 10,) * MOST_DRAFTS
        tracks = take_turns(backend, lambda _, r=rates: r, args, tokens=args.phase)  # type: ignore[misc]
        medians = _medians(tracks, SETTLED, args.phase)
        fixed = {k: seconds for k, seconds in medians.items() if k != AUTO}
        best = min(fixed, key=lambda k: fixed[k])
        chosen = [
            drafts for track in tracks[AUTO] for drafts in track.drafts[len(track.drafts) // 4 :]
        ]
        figures = {
            "synthetic": True,
            "rate": tenth / 10,
            "best_fixed": best,
            "chosen": {
                str(k): round(chosen.count(k) / len(chosen), 3) for k in sorted(set(chosen))
            },
            "speed_by_best_fixed": round(fixed[best] / medians[AUTO], 4),
            "figure": f"best {best}, mostly {max(set(chosen), key=chosen.count)}, "
            f"{fixed[best] / medians[AUTO]:.3f}x the best",
        }
        records.append(record(f"adaptive drafting at {tenth / 10}", figures, threads=args.threads))
    return records


def _medians(tracks: dict[int | str, list[Track]], start: int, end: int) -> dict[int | str, float]:
    return {
        name: float(np.median([track.between(start, end) for track in own]))
        for name, own in tracks.items()
    }


def _backend(args: argparse.Namespace) -> OrtBackend:
    bundle = artifacts(args).bundle(mtp=True, weights="fp32", draft_vocab=args.draft_vocab)
    return open_backend(bundle, threads=args.threads)


def main() -> None:
    """Command line."""
    options = parser(__doc__)
    options.add_argument("--length", type=int, default=128, help="prompt tokens")
    options.add_argument("--phase", type=int, default=256, help="tokens of each kind of text")
    options.add_argument("--turns", type=int, default=5, help="replies of each contender")
    options.add_argument("--first-turn", type=int, default=0, help="odd: the order begins reversed")
    options.add_argument("--draft-vocab", type=int, default=8192, help="of the trimmed draft head")
    options.add_argument("--fixed", type=int, nargs="+", default=list(range(MOST_DRAFTS + 1)))
    options.add_argument("--sweep", action="store_true", help="forced rates 0.0 to 1.0")
    args = options.parse_args()
    records = sweep(args) if args.sweep else measure(args)
    write_records(records, args.json)
    for entry in records:
        print(f"{entry['name']}: {entry['figure']}")


if __name__ == "__main__":
    main()
