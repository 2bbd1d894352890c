"""A probe as rows for people and as the record of ``probe --json``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import selfdraft
from selfdraft.cli.probe_verdict import CAUSE_TEXT

if TYPE_CHECKING:
    from selfdraft.cli.probe_run import ProbeReport
    from selfdraft.manifest import Manifest

SCHEMA = "selfdraft.probe/1"
SHARE_HEADER = ("text", "measured", "accepted", "95 %", "rows")
CAUSE_HEADER = ("cause", "text", "compared", "points", "95 %", "named")


def probe_record(report: ProbeReport, manifest: Manifest, *, bundle: str) -> dict[str, Any]:
    """JSON values; shares and gains are between 0 and 1."""
    measured = manifest.measured
    return {
        "schema": SCHEMA,
        "selfdraft": selfdraft.__version__,
        "bundle": bundle,
        "source": manifest.source.name,
        "precision": asdict(manifest.precision),
        "expected": report.expected,
        "measured_at_export": asdict(measured) if measured else None,
        "baseline": asdict(manifest.baseline) if manifest.baseline else None,
        "perplexity": report.perplexity,
        "measurements": [asdict(one) for one in report.measurements],
        "positions": [asdict(one) for one in report.positions],
        "effects": [{**asdict(one), "named": one.named} for one in report.effects],
        "verdict": {
            "causes": [one.cause for one in report.verdict.causes],
            "summary": report.verdict.summary,
            "advice": report.verdict.advice,
        },
        "untold": report.untold,
    }


def share_rows(report: ProbeReport) -> list[tuple[str, ...]]:
    """A line for each measurement."""
    return [
        (
            one.text,
            one.setting,
            f"{one.share.value:.1%}",
            f"{one.share.low:.1%} to {one.share.high:.1%}",
            str(one.share.rows),
        )
        for one in report.measurements
    ]


def effect_rows(report: ProbeReport) -> list[tuple[str, ...]]:
    """A line for each effect, the largest first."""
    return [
        (
            one.cause,
            one.text,
            one.compared,
            f"{one.gain.value * 100:+.1f}",
            f"{one.gain.low * 100:+.1f} to {one.gain.high * 100:+.1f}",
            "yes" if one.named else "",
        )
        for one in sorted(report.effects, key=lambda effect: -effect.gain.value)
    ]


def cause_text(cause: str) -> str:
    """A cause in words."""
    return {str(key): text for key, text in CAUSE_TEXT.items()}[cause]
