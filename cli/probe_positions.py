"""Acceptance along one long text, and the same rows with only a near context before them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from selfdraft.cli.probe_engine import Rows, TextEngine
from selfdraft.cli.probe_shares import Agreed, Share, paired_difference, share_of
from selfdraft.cli.probe_texts import ProbeText
from selfdraft.cli.probe_verdict import Effect

if TYPE_CHECKING:
    from selfdraft.cli.session import Session

WINDOW = 512
"""Tokens that are run alone; the rows of the second half of each are compared."""
LEAST_WINDOWS = 4
SECTIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionShare:
    """Rows ``[start, end)`` of the long text."""

    start: int
    end: int
    far: Share
    """With everything before them in the cache."""
    near: Share
    """With at most ``WINDOW`` tokens, from position 0 on."""


def long_text_effects(
    session: Session, engine: TextEngine, text: ProbeText, *, sparse: bool
) -> tuple[list[PositionShare], list[Effect]] | None:
    """Shares by position, and the effects of position and of sparse attention; None: too short."""
    limit = session.bundle.manifest.limits.context_length
    windows = min(len(text.whole), limit) // WINDOW
    if windows < LEAST_WINDOWS:
        return None
    ids = text.whole[: windows * WINDOW]
    far = _in_windows(engine.rows(ids[None], dense=not sparse))
    near = engine.rows(ids.reshape(windows, WINDOW), dense=True)
    near_agreed = _second_half(near.agreed)
    far_agreed = _second_half(far)
    half = windows // 2
    gain = paired_difference(near_agreed[half:], far_agreed[half:])
    name = f"{text.name}, positions {half * WINDOW} to {windows * WINDOW}"
    effects = []
    if sparse:
        dense = _second_half(_in_windows(engine.rows(ids[None], dense=True)))
        effects.append(
            Effect(
                cause="sparse_attention",
                text=name,
                compared="dense against sparse",
                gain=paired_difference(dense[half:], far_agreed[half:]),
            )
        )
        gain = paired_difference(near_agreed[half:], dense[half:])
    compared = "near against far positions"
    effects.append(Effect(cause="context", text=name, compared=compared, gain=gain))
    return _sections(near_agreed, far_agreed), effects


def _in_windows(rows: Rows) -> Agreed:
    """Agreement of the one sequence, cut like the windows; the last row of each is left out."""
    agreed = np.append((rows.drafts == rows.choices)[0], False)
    return np.ma.MaskedArray(agreed.reshape(-1, WINDOW)[:, :-1])


def _second_half(agreed: Agreed) -> Agreed:
    return agreed[:, WINDOW // 2 :]


def _sections(near: Agreed, far: Agreed) -> list[PositionShare]:
    parts = np.array_split(np.arange(len(near)), min(SECTIONS, len(near)))
    return [
        PositionShare(
            start=int(part[0]) * WINDOW,
            end=int(part[-1] + 1) * WINDOW,
            far=share_of(far[part]),
            near=share_of(near[part]),
        )
        for part in parts
    ]
