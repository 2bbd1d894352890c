"""Throughput by concurrency: plain batching against speculation, fp32 weights.

    python -m benchmarks.serving

One loop of each kind with as many slots as the largest concurrency; so many requests run in it together,
through the scheduler. Counted are the tokens of decode steps from the moment when all streams run until
the first one ends. Kinds take turns in one process, eight steps each: plain, speculation with the random head (nothing is
accepted: the number of drafts must go to none), and speculation at a forced acceptance (synthetic).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.engines import open_backend
from benchmarks.options import artifacts, parser
from benchmarks.record import record, write_records
from selfdraft.runtime.adaptive.measure import joint_drafts
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.ort import OrtBackend
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import TokenEvent
from selfdraft.runtime.sampling import SamplingParams
from selfdraft.runtime.serving.options import ServingOptions
from selfdraft.runtime.serving.scheduler import Scheduler

FORCED = (0.87, 0.75, 0.6, 0.5)
SCALING, SCALING_AT = 2.5, 4
"""Plain throughput wanted at so many slots, by that of one."""
NEAR_PLAIN = 0.97
BLOCK = 8
KINDS = ("plain", "random head", "forced")
Rounds = list[float]
"""Tokens a second, by round."""


class Contender:
    """One kind of decoding, kept from round to round with what it learns."""

    def __init__(self, backend: OrtBackend, kind: str, args: argparse.Namespace) -> None:
        checked: Any = backend  # the protocol cannot say that a backend takes its own states
        batch = max(args.slots)
        policy: Any = 0 if kind == "plain" else joint_drafts(checked, batch=batch) or 0
        self._loop = DecodeLoop(
            checked,
            batch=batch,
            drafts=policy,
            context_length=args.length + args.tokens + 16,
            forced_acceptance=FORCED if kind == "forced" else None,
        )
        self._scheduler: Scheduler | None = None
        self._random = np.random.default_rng(0)
        self._vocab = backend.manifest.model.vocab_size

    def start(self, concurrency: int, *, length: int, tokens: int) -> None:
        """Let ``concurrency`` streams run; whatever ran before ends."""
        if self._scheduler is not None:
            list(self._scheduler.cancel_all())
        self._scheduler = scheduler = Scheduler(self._loop, ServingOptions(target_gap_ms=60_000))
        self._concurrency, self._tokens, self._seconds = concurrency, 0, 0.0
        for _ in range(concurrency):
            prompt = self._random.integers(self._vocab, size=length).tolist()
            request = Request(
                prompt_ids=tuple(prompt),
                sampling=SamplingParams(temperature=0.0),
                max_tokens=tokens,
                ignore_eos=True,
            )
            scheduler.submit(request, on_event=lambda _event: None)
        while len(self._loop.active) < concurrency:
            list(scheduler.step())

    @property
    def running(self) -> bool:
        """Whether all streams still run."""
        return len(self._loop.active) == self._concurrency

    def advance(self, steps: int) -> None:
        """So many steps, while all streams run."""
        assert self._scheduler is not None
        start = time.perf_counter()
        for _ in range(steps):
            if self.running:
                found = list(self._scheduler.step())
                self._tokens += sum(isinstance(event, TokenEvent) for _, event in found)
        self._seconds += time.perf_counter() - start

    @property
    def throughput(self) -> float:
        """Tokens a second since the start."""
        return self._tokens / self._seconds


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The records of all concurrencies."""
    bundle = artifacts(args).bundle(mtp=True, weights="fp32", draft_vocab=args.draft_vocab)
    backend = open_backend(bundle, threads=args.threads)
    contenders = {kind: Contender(backend, kind, args) for kind in KINDS}
    found = take_turns(contenders, args)
    return [
        record(name, figures, threads=args.threads)
        for name, figures in summary(found, args.slots).items()
    ]


def take_turns(
    contenders: Mapping[str, Contender], args: argparse.Namespace
) -> dict[tuple[str, int], Rounds]:
    """Rounds of every kind and concurrency; the first is not counted.

    Within a round kinds take turns every ``BLOCK`` steps, so that all meet the same moods of the host.
    """
    found: dict[tuple[str, int], Rounds] = {(k, c): [] for k in contenders for c in args.slots}
    for turn in range(args.turns + 1):
        for concurrency in args.slots:
            for contender in contenders.values():
                contender.start(concurrency, length=args.length, tokens=args.tokens)
            while any(contender.running for contender in contenders.values()):
                for contender in contenders.values():
                    contender.advance(BLOCK)
            if turn:
                for kind, contender in contenders.items():
                    found[kind, concurrency].append(contender.throughput)
    return found


def summary(
    found: Mapping[tuple[str, int], Rounds], slots: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """Figures by record name; ratios are medians over the rounds, each within its round."""
    records = {}
    for concurrency in slots:
        plain = found["plain", concurrency]
        scaling = _ratio(plain, found["plain", slots[0]])
        wanted = SCALING if concurrency == SCALING_AT and slots[0] == 1 else None
        records[f"serving, {concurrency} slots, plain"] = {
            "slots": concurrency,
            "tokens_per_s": round(float(np.median(plain)), 2),
            "by_first": round(scaling, 4),
            "figure": f"{np.median(plain):.1f} tokens/s, {scaling:.2f}x of {slots[0]} slots",
            "wanted": f">= {wanted}x" if wanted else "",
            "met": scaling >= wanted if wanted else None,
        }
        for kind in KINDS[1:]:
            speeds = found[kind, concurrency]
            ratio = _ratio(speeds, plain)
            records[f"serving, {concurrency} slots, {kind}"] = {
                "synthetic": kind == "forced",
                "slots": concurrency,
                "tokens_per_s": round(float(np.median(speeds)), 2),
                "by_plain": round(ratio, 4),
                "figure": f"{np.median(speeds):.1f} tokens/s, {ratio:.3f}x of plain",
                "wanted": f">= {NEAR_PLAIN}x",
                "met": ratio >= NEAR_PLAIN,
            }
    return records


def _ratio(ours: Rounds, theirs: Rounds) -> float:
    return float(np.median([a / b for a, b in zip(ours, theirs, strict=True)]))


def main() -> None:
    """Command line."""
    options = parser(__doc__)
    options.add_argument("--length", type=int, default=32, help="prompt tokens")
    options.add_argument("--tokens", type=int, default=96, help="tokens of each reply")
    options.add_argument("--turns", type=int, default=4, help="rounds that count")
    options.add_argument("--slots", type=int, nargs="+", default=[1, 2, 4, 8])
    options.add_argument("--draft-vocab", type=int, default=8192, help="of the trimmed draft head")
    args = options.parse_args()
    records = measure(args)
    write_records(records, args.json)
    for entry in records:
        print(f"{entry['name']}: {entry['figure']} [{entry['wanted']}]")


if __name__ == "__main__":
    main()
