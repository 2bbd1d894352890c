"""Counters of decode steps, with vLLM's names (docs/telemetry.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from selfdraft.baseline import DraftCounts

OTHER_TASK = "other"
"""Tasks beyond those that are counted on their own."""


class Labels(NamedTuple):
    """What all steps of a request have in common."""

    task: str
    mode: str
    """How drafts are verified: greedy, match or rejection."""
    temperature: float


class Key(NamedTuple):
    """A kind of step."""

    labels: Labels
    bucket: int
    """Of the absolute position of its first token (``baseline.bucket_of``)."""
    drafts: int
    """Drafts of the head that it verified."""


class Histogram:
    """Steps of one kind: ``steps[a]`` accepted a drafts of the head; ``tokens`` they drew in all."""

    __slots__ = ("steps", "tokens")

    def __init__(self, drafts: int) -> None:
        self.steps = [0] * (drafts + 1)
        self.tokens = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """Decode steps of one group, and their drafts."""

    steps: int
    """Decode steps of single slots, those without drafts included."""
    tokens: int
    """Tokens that they drew."""
    drafts: int
    """Steps that drafted at all (vLLM's ``num_drafts``)."""
    counts: DraftCounts
    """Drafted and accepted tokens at each draft position."""
    reached: tuple[int, ...]
    """Of the steps that drafted at a position, those that accepted every draft before it."""

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted by drafted tokens. No step without drafts counts, and no token of the target's own."""
        return self.counts.rate()

    @property
    def acceptance_per_position(self) -> tuple[float | None, ...]:
        """Steps that accepted this draft and all before it, by steps that drafted it."""
        return tuple(self.counts.rate(i) for i in range(len(self.counts.drafted)))

    @property
    def conditional_per_position(self) -> tuple[float | None, ...]:
        """The same among steps that accepted every draft before it."""
        pairs = zip(self.counts.accepted, self.reached, strict=True)
        return tuple(_share(accepted, reached) for accepted, reached in pairs)

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens that a step drew on average, those without drafts included."""
        return _share(self.tokens, self.steps)

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted drafts of a step that drafted (vLLM)."""
        return 1 + sum(self.counts.accepted) / self.drafts if self.drafts else None

    def to_json(self) -> dict[str, Any]:
        """Counts and rates as plain values."""
        return {
            "num_steps": self.steps,
            "num_tokens": self.tokens,
            "spec_decode_num_drafts": self.drafts,
            "spec_decode_num_draft_tokens": sum(self.counts.drafted),
            "spec_decode_num_accepted_tokens": sum(self.counts.accepted),
            "spec_decode_num_draft_tokens_per_pos": list(self.counts.drafted),
            "spec_decode_num_accepted_tokens_per_pos": list(self.counts.accepted),
            "acceptance_rate": self.acceptance_rate,
            "acceptance_rate_per_pos": list(self.acceptance_per_position),
            "conditional_acceptance_rate_per_pos": list(self.conditional_per_position),
            "mean_acceptance_length": self.mean_acceptance_length,
            "tokens_per_step": self.tokens_per_step,
        }


def sum_histograms(parts: Iterable[Histogram]) -> StepCounts:
    """All steps of ``parts`` together."""
    kept = list(parts)
    depth = max((len(part.steps) - 1 for part in kept if any(part.steps)), default=0)
    drafted, accepted, reached = [0] * depth, [0] * depth, [0] * depth
    for part in kept:
        for place in range(len(part.steps) - 1 if any(part.steps) else 0):
            drafted[place] += sum(part.steps)
            reached[place] += sum(part.steps[place:])
            accepted[place] += sum(part.steps[place + 1 :])
    return StepCounts(
        steps=sum(sum(part.steps) for part in kept),
        tokens=sum(part.tokens for part in kept),
        drafts=drafted[0] if depth else 0,
        counts=DraftCounts(drafted=tuple(drafted), accepted=tuple(accepted)),
        reached=tuple(reached),
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
