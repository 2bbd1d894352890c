"""A measured series as one JSON line, and as a row for people."""

from __future__ import annotations

from typing import Any

from selfdraft.cli.attention_counters import attention_facts
from selfdraft.cli.measure import MeasureOptions, Series, spread
from selfdraft.runtime.memory import peak_rss_bytes

SCHEMA = "selfdraft.bench/1"
HEADER = (
    "context",
    "drafts",
    "step ms",
    "p10",
    "p90",
    "loop µs",
    "tok/s",
    "tok/step",
    "× plain",
    "accepted",
)


def bench_record(
    series: Series,
    plain: Series,
    options: MeasureOptions,
    *,
    head: dict[str, Any],
    context: int,
    tokens: int,
    prompt_source: str,
) -> dict[str, Any]:
    """Everything measured for one context and one number of drafts; unmeasured is ``None``."""
    speed = spread(series.tok_per_s)
    overhead = [a - b for a, b in zip(series.step_s, series.engine_s, strict=True)]
    forced = options.forced_acceptance if series.drafts else None
    return {
        "schema": SCHEMA,
        **head,
        "context": context,
        "drafts": series.drafts,
        "tokens": tokens,
        "prompt_source": prompt_source,
        "warmup": options.warmup,
        "repeats": options.repeats,
        "synthetic": forced is not None,
        "forced_acceptance": forced,
        "steps": len(series.step_s),
        "step_ms": spread(series.step_s, scale=1e3),
        "engine_ms": spread(series.engine_s, scale=1e3),
        "loop_overhead_us": spread(overhead, scale=1e6),
        "tok_per_s": speed,
        "speedup": speed["median"] / spread(plain.tok_per_s)["median"],
        "tokens_per_step": series.tokens_per_step,
        "acceptance": [
            {"position": i, "drafted": drafted, "accepted": accepted}
            for i, (drafted, accepted) in enumerate(series.acceptance, start=1)
        ],
        "attention": attention_facts(series.results),
        "prefill_tok_per_s": series.prefill_tok_per_s,
        "state_bytes": series.results[-1].state_bytes,
        "peak_rss_bytes": peak_rss_bytes(),
        "gb_per_s": None,
        "watts": None,
        "temperature_c": None,
    }


def bench_row(record: dict[str, Any]) -> tuple[object, ...]:
    """The record under ``HEADER``."""
    step = record["step_ms"]
    shares = [
        f"{100 * a['accepted'] / a['drafted']:.0f} %" if a["drafted"] else "–"
        for a in record["acceptance"]
    ]
    forced = " (forced)" if record["synthetic"] else ""
    return (
        record["context"],
        record["drafts"],
        f"{step['median']:.3f}",
        f"{step['p10']:.3f}",
        f"{step['p90']:.3f}",
        f"{record['loop_overhead_us']['median']:.0f}",
        f"{record['tok_per_s']['median']:.1f}",
        f"{record['tokens_per_step']:.2f}",
        f"{record['speedup']:.2f}",
        ", ".join(shares) + forced if shares else "",
    )
