"""How replies kept to their thinking budgets: one record a reply, rates by level and temperature."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingRecord:
    """Thinking of one reply. Only delivered tokens are counted."""

    budget: int
    """Thinking tokens that the reply was allowed: the level."""
    temperature: float
    thinking_tokens: int
    """Tokens between the tags, without wrap-up sentence and end sequence."""
    forced_tokens: int
    """Tokens of the wrap-up sentence and the end sequence that the budget put in."""
    completing_tokens: int
    """Thinking tokens past the budget that complete a character, at most 3."""
    triggered: bool
    """The budget ended the thinking."""
    violated: bool
    """More thinking tokens than budget and completion allow, counted in the delivered text."""
    closed: bool
    """No thinking was open when the reply ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingRate:
    """Replies of one level at one temperature."""

    budget: int
    temperature: float
    replies: int
    triggered: int
    violated: int

    @property
    def trigger_rate(self) -> float:
        """Share of replies whose thinking the budget ended."""
        return self.triggered / self.replies

    @property
    def violation_rate(self) -> float:
        """Share of replies that thought longer than allowed."""
        return self.violated / self.replies


def thinking_rates(records: Iterable[ThinkingRecord]) -> list[ThinkingRate]:
    """Counts for each level and temperature that occurs, in ascending order."""
    groups: dict[tuple[int, float], list[ThinkingRecord]] = defaultdict(list)
    for record in records:
        groups[record.budget, record.temperature].append(record)
    return [
        ThinkingRate(
            budget=budget,
            temperature=temperature,
            replies=len(own),
            triggered=sum(record.triggered for record in own),
            violated=sum(record.violated for record in own),
        )
        for (budget, temperature), own in sorted(groups.items())
    ]
