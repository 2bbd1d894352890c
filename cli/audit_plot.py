"""The figure of an audit: recall by layer, KL by position."""

from __future__ import annotations

import math
from pathlib import Path

from selfdraft.cli.audit_run import AuditReport
from selfdraft.cli.svg import COLOURS, Axes, svg_document
from selfdraft.errors import ConfigError, ResourceError

WIDTH, HEIGHT = 760, 620
LEAST_KL = 1e-9
"""KL below this is drawn there: rounding of fp32 logits."""


def check_plot(path: Path) -> None:
    """Refuse a file that cannot be drawn, before anything is computed."""
    if path.suffix.lower() != ".svg":
        raise ConfigError(
            f"--plot {path} is no .svg file, and figures are written as SVG",
            hint=f"give --plot {path.with_suffix('.svg')}",
        )
    if not path.parent.is_dir():
        raise ResourceError(
            f"--plot {path}: there is no folder {path.parent}",
            hint=f"make it: mkdir -p {path.parent}",
        )


def write_plot(path: Path, report: AuditReport, *, title: str) -> None:
    """Draw ``report`` into ``path``. Raises ``ResourceError`` when it cannot be written."""
    text = svg_document([_recall(report, title), _kl(report)], width=WIDTH, height=HEIGHT)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResourceError(
            f"{path} cannot be written: {error.strerror}", hint="choose another place"
        ) from None


def _recall(report: AuditReport, title: str) -> Axes:
    layers = [float(layer.layer) for layer in report.layers]
    axes = Axes(
        left=70,
        top=50,
        width=WIDTH - 100,
        height=200,
        x_range=(min(layers) - 0.6, max(layers) + 0.6),
        y_range=(0.0, 1.0),
    )
    step = max(len(layers) // 16, 1)
    axes.frame(
        title=f"{title}: attention-mass recall",
        x_label="layer",
        x_ticks=layers[::step],
    )
    axes.bars(layers, [a.recall.mean for a in report.layers], width=0.8, colour=COLOURS[0])
    axes.bars(layers, [a.recall.p5 for a in report.layers], width=0.4, colour=COLOURS[1])
    axes.legend([("mean", COLOURS[0]), ("p5", COLOURS[1])])
    return axes


def _kl(report: AuditReport) -> Axes:
    decode = [row.kl for row in report.rows]
    prefill = [row.prefill_kl for row in report.rows]
    positions = [float(row.position) for row in report.rows]
    axes = Axes(
        left=70,
        top=350,
        width=WIDTH - 100,
        height=200,
        x_range=(positions[0], positions[-1]),
        y_range=(LEAST_KL, 10.0 ** math.ceil(math.log10(max(*decode, *prefill, 1e-6)))),
        log_y=True,
    )
    ticks = sorted({positions[0], positions[len(positions) // 2], positions[-1]})
    axes.frame(title="KL to dense, nats", x_label="position", x_ticks=ticks)
    axes.points(positions, decode, colour=COLOURS[0])
    axes.points(positions, prefill, colour=COLOURS[1])
    axes.legend([("sparse decode", COLOURS[0]), ("sparse prefill", COLOURS[1])])
    return axes
