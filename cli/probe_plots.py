"""Figures of a probe as inline SVG: shares with their intervals, and shares along a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from selfdraft.cli.svg import COLOURS, FAINT, INK, Axes

WIDTH, LABEL_WIDTH, ROW_HEIGHT = 860, 430, 22
PLOT_HEIGHT = 190


def interval_bars(labels: Sequence[str], values: Sequence[Mapping[str, float]]) -> str:
    """A bar from 0 for each ``value`` with a line from ``low`` to ``high``; all are shares."""
    least = min([0.0, *(value["low"] for value in values)])
    most = max([0.01, *(value["high"] for value in values)])
    scale = (WIDTH - LABEL_WIDTH - 70) / (most - least)

    def x(share: float) -> float:
        return LABEL_WIDTH + (share - least) * scale

    parts = []
    for row, (label, value) in enumerate(zip(labels, values, strict=True)):
        middle = ROW_HEIGHT * row + ROW_HEIGHT / 2
        left, right = sorted((x(0.0), x(value["value"])))
        low, high, base = x(value["low"]), x(value["high"]), f"{middle + 4:.1f}"
        parts += [
            f'<text x="{LABEL_WIDTH - 8}" y="{base}" text-anchor="end">{escape(label)}</text>',
            _bar(left, right, middle),
            f'<path d="M{low:.1f} {middle:.1f}H{high:.1f}" stroke="{INK}" stroke-width="2"/>',
            f'<text x="{x(most) + 8:.1f}" y="{base}">{value["value"] * 100:.1f}</text>',
        ]
    height = ROW_HEIGHT * len(labels)
    axis = f'<line x1="{x(0):.1f}" y1="0" x2="{x(0):.1f}" y2="{height}" stroke="{FAINT}"/>'
    return _svg([axis, *parts], height)


def _bar(left: float, right: float, middle: float) -> str:
    size = f'width="{right - left:.1f}" height="14"'
    return f'<rect x="{left:.1f}" y="{middle - 7:.1f}" {size} fill="{COLOURS[0]}"/>'


def position_plot(positions: Sequence[Mapping[str, Any]]) -> str:
    """Shares by position: with all that came before, and with the near context alone."""
    end = float(positions[-1]["end"])
    shares = [
        one[kind][edge] for one in positions for kind in ("far", "near") for edge in ("low", "high")
    ]
    axes = Axes(
        left=60,
        top=30,
        width=WIDTH - 90,
        height=PLOT_HEIGHT,
        x_range=(float(positions[0]["start"]), end),
        y_range=(min(shares), max(shares)),
    )
    ticks = [float(one["start"]) for one in positions] + [end]
    axes.frame(title="accepted by position", x_label="position in tokens", x_ticks=ticks)
    for (name, colour), shift in zip(_series(), (-0.08, 0.08), strict=True):
        for one in positions:
            place = (one["start"] + one["end"]) / 2 + shift * (one["end"] - one["start"])
            share = one[name]
            axes.points([place], [share["value"]], colour=colour)
            x = axes.x(place)
            axes.parts.append(
                f'<line x1="{x:.1f}" y1="{axes.y(share["low"]):.1f}" x2="{x:.1f}" '
                f'y2="{axes.y(share["high"]):.1f}" stroke="{colour}"/>'
            )
    axes.legend(_series())
    return _svg(axes.parts, PLOT_HEIGHT + 80)


def _series() -> list[tuple[str, str]]:
    return [("far", COLOURS[0]), ("near", COLOURS[1])]


def _svg(parts: Sequence[str], height: float) -> str:
    """Inline, so without a namespace: the page asks nobody for anything."""
    body = "\n".join(parts)
    return (
        f'<svg width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'font-size="12" role="img">\n{body}\n</svg>'
    )
