"""A small SVG writer: bars, points and axes, enough for a figure in a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

INK, FAINT = "#333333", "#dddddd"
COLOURS = ("#2a6f97", "#e07a5f")
FONT_PX = 12


@dataclass(slots=True, kw_only=True)
class Axes:
    """A plot area of ``width x height`` px at ``left, top``; draws into ``parts``."""

    left: float
    top: float
    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    log_y: bool = False
    parts: list[str] = field(default_factory=list)

    def frame(self, *, title: str, x_label: str, x_ticks: Sequence[float]) -> None:
        """Title, grid lines and numbers."""
        for value in self._y_ticks():
            y = self.y(value)
            self._line(self.left, y, self.left + self.width, y, FAINT)
            self._text(self.left - 6, y + 4, f"{value:g}", anchor="end")
        bottom = self.top + self.height
        for value in x_ticks:
            self._text(self.x(value), bottom + 16, f"{value:g}", anchor="middle")
        self._text(self.left, self.top - 10, title)
        self._text(self.left + self.width / 2, bottom + 34, x_label, anchor="middle")

    def bars(self, xs: Sequence[float], ys: Sequence[float], *, width: float, colour: str) -> None:
        """A bar from the bottom at each x, ``width`` in units of x."""
        bottom = self.top + self.height
        for x, value in zip(xs, ys, strict=True):
            left, right = self.x(x - width / 2), self.x(x + width / 2)
            y = self.y(value)
            self.parts.append(
                f'<rect x="{left:.1f}" y="{y:.1f}" width="{right - left:.1f}" '
                f'height="{bottom - y:.1f}" fill="{colour}"/>'
            )

    def points(self, xs: Sequence[float], ys: Sequence[float], *, colour: str) -> None:
        """A dot at each place."""
        for x, value in zip(xs, ys, strict=True):
            self.parts.append(
                f'<circle cx="{self.x(x):.1f}" cy="{self.y(value):.1f}" r="3" fill="{colour}"/>'
            )

    def legend(self, entries: Sequence[tuple[str, str]]) -> None:
        """Names and colours, right-aligned above the plot."""
        for row, (name, colour) in enumerate(reversed(entries)):
            x = self.left + self.width - 130 * row
            self._text(x, self.top - 10, name, anchor="end", colour=colour)

    def x(self, value: float) -> float:
        """Place of ``value`` in px."""
        low, high = self.x_range
        return self.left + self.width * (value - low) / ((high - low) or 1.0)

    def y(self, value: float) -> float:
        """Place of ``value`` in px, clipped to the plot."""
        low, high = (self._scaled(limit) for limit in self.y_range)
        share = (self._scaled(value) - low) / ((high - low) or 1.0)
        return self.top + self.height * (1 - min(max(share, 0.0), 1.0))

    def _scaled(self, value: float) -> float:
        return math.log10(max(value, self.y_range[0])) if self.log_y else value

    def _y_ticks(self) -> list[float]:
        low, high = self.y_range
        if not self.log_y:
            return [low + (high - low) * i / 4 for i in range(5)]
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        return [10.0**power for power in range(first, last + 1)]

    def _line(self, x1: float, y1: float, x2: float, y2: float, colour: str) -> None:
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'
        )

    def _text(
        self, x: float, y: float, text: str, *, anchor: str = "start", colour: str = INK
    ) -> None:
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">'
            f"{escape(text)}</text>"
        )


def svg_document(axes: Sequence[Axes], *, width: int, height: int) -> str:
    """The figure as a text that stands alone."""
    body = "\n".join(part for one in axes for part in one.parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="{FONT_PX}">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )
