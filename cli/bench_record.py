"""A measured series as one JSON line, and as a row for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from selfdraft.cli.attention_counters import attention_facts
from selfdraft.cli.bench_schema import SCHEMA
from selfdraft.cli.board_meter import BoardRun, board_readings, roofline_share
from selfdraft.cli.measure import MeasureOptions, Series, spread
from selfdraft.cli.step_bytes import step_bytes
from selfdraft.runtime.memory import peak_rss_bytes

if TYPE_CHECKING:
    from selfdraft.manifest import Manifest

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSetting:
    """What the series of one context share."""

    head: dict[str, Any]
    manifest: Manifest
    context: int
    tokens: int
    prompt_source: str
    board: BoardRun | None = None


def bench_record(
    series: Series, plain: Series, options: MeasureOptions, setting: BenchSetting
) -> dict[str, Any]:
    """Everything measured for one context and one number of drafts; unmeasured is ``None``."""
    speed = spread(series.tok_per_s)
    overhead = [a - b for a, b in zip(series.step_s, series.engine_s, strict=True)]
    forced = options.forced_acceptance if series.drafts else None
    length = setting.context + setting.tokens // 2
    read = step_bytes(setting.manifest, length=length, drafts=series.drafts)
    engine = spread(series.engine_s)["median"]
    gb_per_s = read / engine / 1e9 if read is not None and engine else None
    made = sum(len(result.tokens) - 1 for result in series.results)
    return {
        "schema": SCHEMA,
        **setting.head,
        "context": setting.context,
        "drafts": series.drafts,
        "tokens": setting.tokens,
        "prompt_source": setting.prompt_source,
        "warmup": options.warmup,
        "warmup_s": options.warmup_s,
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
        "ttft_ms": None if series.ttft_s is None else series.ttft_s * 1e3,
        "state_bytes": series.results[-1].state_bytes,
        "peak_rss_bytes": peak_rss_bytes(),
        "bytes_per_step": read,
        "gb_per_s": gb_per_s,
        "roofline_share": roofline_share(setting.board, gb_per_s),
        **board_readings(setting.board, series.spans, tokens=made),
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
