"""How many rows of a prompt fit between two steps of running streams."""

from __future__ import annotations

LEAST_ROWS = 16
"""Rows of a chunk, however slow: a prompt always goes on."""
FIRST_ROWS = 64
"""Rows of the first chunk beside running streams, while nothing is known."""
FADE = 0.9
"""Weight of what was known when a new chunk or step is seen."""


class Pace:
    """Seconds of chunks by their rows and of steps, learnt as they run; what fits a gap follows."""

    def __init__(self, target_gap_s: float) -> None:
        self._target_gap_s = target_gap_s
        self._fit = _Line()
        self.step_s: float | None = None
        """Running mean of a decode step; None before the first."""

    def note_chunk(self, rows: int, seconds: float) -> None:
        """A chunk of so many rows took ``seconds``, the head's part included."""
        self._fit.add(rows, seconds)

    def note_step(self, seconds: float) -> None:
        """A decode step took ``seconds``."""
        known = seconds if self.step_s is None else self.step_s
        self.step_s = FADE * known + (1 - FADE) * seconds

    def rows(self, most: int) -> int:
        """Rows of the next chunk beside running streams, ``most`` at most.

        So many that the chunk and the step behind it take no longer than the gap that a stream may
        have; at least ``LEAST_ROWS``, and whole multiples of it, so that few shapes occur.
        """
        fitted = self._fit.rows_in(self._target_gap_s - (self.step_s or 0.0))
        if fitted is None:
            fitted = FIRST_ROWS
        if fitted >= most:
            return most
        return min(max(int(fitted) // LEAST_ROWS * LEAST_ROWS, LEAST_ROWS), most)


class _Line:
    """``seconds = fixed + rows * each``, least squares in which older points fade."""

    def __init__(self) -> None:
        self._sums = [0.0] * 5

    def add(self, rows: float, seconds: float) -> None:
        point = (1.0, rows, seconds, rows * rows, rows * seconds)
        self._sums = [FADE * old + new for old, new in zip(self._sums, point, strict=True)]

    def rows_in(self, seconds: float) -> float | None:
        """Rows that take so long; None before the first point."""
        weight, x, y, xx, xy = self._sums
        if not weight:
            return None
        spread = weight * xx - x * x
        each = (weight * xy - x * y) / spread if spread > 1e-6 * weight * xx else 0.0
        if each <= 0:  # all points alike, or noise: take the cost to be all by row
            return seconds * x / y if y > 0 else None
        return (seconds - (y - each * x) / weight) / each
