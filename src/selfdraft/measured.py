"""What ``export --calibrate`` measured, as the manifest keeps it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """A model on a text, teacher-forced."""

    perplexity: float
    acceptance: float | None
    """Share of first drafts that are the backbone's greedy choice; null without an MTP head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What ``export --calibrate`` found on a text."""

    text: str
    text_sha256: str
    tokens: int
    tap_acceptance: dict[str, float]
    """Acceptance with each tap that was tried; the better one is the manifest's."""
    recycle_acceptance: dict[str, float]
    """Of drafts behind the first, by what is recycled; empty where too few chains were right."""
    before: Scores
    """With the checkpoint's own weights."""
    after: Scores | None
    """With the stored weights; null where nothing is quantised."""
    activation_aware: bool
    """Weights were scaled and searched by the text's activations."""
