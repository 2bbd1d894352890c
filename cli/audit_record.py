"""An audit as plain values, and as lines for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from selfdraft.cli.audit_run import AuditReport, LayerAudit

LAYER_HEADER = ("layer", "selector", "recall", "p5", "min", "best", "blocks read", "prefill error")


def audit_record(report: AuditReport) -> dict[str, Any]:
    """Everything in the report, with its totals; KL in nats."""
    return {
        "context": report.context,
        "active": report.active,
        "rows_left_out": report.rows_left_out,
        "blocks_share": report.blocks_share,
        "kl": _kl([row.kl for row in report.rows]),
        "same_top": _mean([row.same_top for row in report.rows]),
        "prefill_kl": _kl([row.prefill_kl for row in report.rows]),
        "prefill_same_top": _mean([row.prefill_same_top for row in report.rows]),
        "replay_error": report.replay_error,
        "layers": [asdict(layer) for layer in report.layers],
        "rows": [asdict(row) for row in report.rows],
        "notes": notes_of(report),
    }


def layer_row(layer: LayerAudit) -> tuple[object, ...]:
    """One layer under ``LAYER_HEADER``."""
    return (
        layer.layer,
        layer.selector,
        f"{layer.recall.mean:.4f}",
        f"{layer.recall.p5:.4f}",
        f"{layer.recall.least:.4f}",
        f"{layer.best_recall:.4f}",
        f"{layer.blocks_read / layer.blocks_in_use:.1%}",
        f"{layer.prefill_error:.2e}",
    )


def summary_rows(report: AuditReport) -> list[tuple[str, str]]:
    """The totals, a line each."""
    record, rows = audit_record(report), len(report.rows)
    sparse = (
        f"yes, {report.rows_left_out} of {rows} rows left blocks out" if report.active else "no"
    )
    return [
        ("context", f"{report.context} tokens, {rows} rows looked at"),
        ("sparse path active", sparse),
        ("blocks read", f"{report.blocks_share:.1%} of those in use"),
        ("KL, sparse decode", _kl_text(record["kl"], record["same_top"])),
        ("KL, sparse prefill too", _kl_text(record["prefill_kl"], record["prefill_same_top"])),
        ("recall pass against engine", f"{report.replay_error:.1e} of the largest hidden value"),
    ]


def notes_of(report: AuditReport) -> list[str]:
    """What a reader of the figures should know."""
    if report.active:
        return []
    text = (
        f"the budget covers all {report.context} tokens, so every row attended to everything: "
        "give a longer text or --context N"
    )
    return [text]


def _kl(values: list[float]) -> dict[str, float]:
    return {
        "mean": _mean(values),
        "p95": float(np.percentile(values, 95)),
        "max": float(max(values)),
    }


def _kl_text(kl: dict[str, float], same_top: float) -> str:
    figures = f"mean {kl['mean']:.2e}, p95 {kl['p95']:.2e}, max {kl['max']:.2e} nats"
    return f"{figures}; same likeliest token {same_top:.1%}"


def _mean(values: list[Any]) -> float:
    return float(np.mean(values))
