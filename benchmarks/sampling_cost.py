"""What drawing a token costs the host beside greedy decoding, by rule and vocabulary.

    python -m benchmarks.sampling_cost

No model: probabilities fall as a power of the rank, with an exponent from 1.2 (anything may follow) to
3 (almost certain) in equal shares, over shuffled ids; candidates are given, as the engines give them.
``fallback_share`` counts rows whose candidates did not decide, so that the whole row was fetched and
its normaliser summed. Plain sampling at temperature 1 without filters is the dearest rule: its draw
needs the mass of all tokens.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from benchmarks.options import parser
from benchmarks.record import record, write_records
from selfdraft.runtime.candidates import top_candidates
from selfdraft.runtime.logit_params import LogitParams
from selfdraft.runtime.request import Request
from selfdraft.runtime.request_chain import build_chain
from selfdraft.runtime.row_sampler import RowSampler
from selfdraft.runtime.sampling import SamplingLaw

CANDIDATES = 256
VOCABULARIES = (32_000, 151_936)
NUM_ROWS = 200
EXPONENTS = (1.2, 3.0)
RULES: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "T=1": {},
    "T=1, top-k 50": {"top_k": 50},
    "T=1, top-p 0.95": {"top_p": 0.95},
    "T=0.7, top-k 20, top-p 0.8": {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
}
PENALTIES = LogitParams(repetition_penalty=1.1, frequency_penalty=0.3)


class HostRow:
    """A row that is read in full only when it is asked for, as an engine's is."""

    def __init__(self, row: Any) -> None:
        self._row = row

    def full(self) -> Any:
        return self._row.copy()

    def entries(self, ids: Any) -> Any:
        return self._row[ids]


def measure(args: argparse.Namespace, vocab_size: int) -> list[dict[str, Any]]:
    """Records of every rule for one vocabulary."""
    rows = _rows(vocab_size)
    candidates = [top_candidates(row, CANDIDATES) for row in rows]
    records = []
    for penalised in (False, True):
        for name, filters in RULES.items():
            given: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
            law = SamplingLaw(**(given | filters), seed=0)
            request = Request(prompt_ids=(1,), logits=PENALTIES if penalised else LogitParams())
            chain = build_chain(request, vocab_size=vocab_size, end_ids=())
            sampler = RowSampler(law, vocab_size=vocab_size, chain=chain)
            spent = _draw_all(sampler, rows, candidates, rounds=args.rounds)
            label = f"draw {name}{', penalties' if penalised else ''}, V={vocab_size}"
            figures = {
                "us": {
                    "median": round(float(np.median(spent)), 1),
                    "mean": round(float(np.mean(spent)), 1),
                },
                "fallback_share": round(sampler.fallbacks / len(spent), 4),
                "figure": f"{np.mean(spent):.0f} µs a token, "
                f"{100 * sampler.fallbacks / len(spent):.1f} % of rows fetched",
            }
            records.append(record(label, figures, threads=1))
    return records


def _rows(vocab_size: int) -> Any:
    """Logits ``[NUM_ROWS, V]``."""
    rng = np.random.default_rng(0)
    ranked = -np.log(np.arange(1, vocab_size + 1))
    exponents = np.linspace(*EXPONENTS, NUM_ROWS)
    return np.stack([rng.permutation(ranked * a) for a in exponents]).astype(np.float32)


def _draw_all(sampler: RowSampler, rows: Any, candidates: Any, *, rounds: int) -> list[float]:
    spent = []
    for index in range(rounds * len(rows)):
        place = index % len(rows)
        values, ids = candidates[place]
        start = time.perf_counter()
        sampler.draw(values, ids, position=index, row=HostRow(rows[place]))
        spent.append((time.perf_counter() - start) * 1e6)
    return spent


def main() -> None:
    """Command line."""
    args = parser(__doc__).parse_args()
    records = [entry for vocab in VOCABULARIES for entry in measure(args, vocab)]
    write_records(records, args.json)
    for entry in records:
        print(f"{entry['name']}: {entry['figure']}")


if __name__ == "__main__":
    main()
