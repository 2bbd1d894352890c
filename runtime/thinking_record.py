"""How replies kept to their thinking budgets: one record a reply, rates by level and temperature."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from selfdraft.runtime.subsequences import Matcher
from selfdraft.runtime.thinking import Thinking, ThinkingBudget, ThinkTags

MAX_COMPLETING = 3
"""Tokens that the rest of a UTF-8 character can take."""


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


def thinking_record(
    thinking: Thinking,
    budget: ThinkingBudget,
    *,
    temperature: float,
    prompt_ids: Sequence[int],
    reply: Sequence[int],
) -> ThinkingRecord:
    """The record of ``reply``, after which ``budget`` stands.

    Lengths are counted anew in the tokens themselves, so that a budget that was not kept shows.
    """
    inside, closed = thought_at(prompt_ids, reply, thinking.tags)
    drawn = len(set(inside) - set(budget.forced_at))
    return ThinkingRecord(
        budget=thinking.budget,
        temperature=temperature,
        thinking_tokens=drawn,
        forced_tokens=len(budget.forced_at),
        completing_tokens=budget.completing_tokens,
        triggered=budget.triggered,
        violated=drawn > thinking.budget + min(budget.completing_tokens, MAX_COMPLETING),
        closed=closed,
    )


def thought_at(
    prompt_ids: Sequence[int], reply: Sequence[int], tags: ThinkTags
) -> tuple[list[int], bool]:
    """Indices in ``reply`` of the tokens between the tags, and whether thinking is closed."""
    inside: list[int] = []
    opened = tags.open_in(prompt_ids)
    start, end = Matcher(tags.start_ids), Matcher(tags.end_ids)
    for index, token in enumerate(reply):
        if not opened:
            opened = start.push(token)
            end.reset()
            continue
        inside.append(index)
        if end.push(token):
            del inside[-len(tags.end_ids) :]
            opened = False
            start.reset()
    return inside, not opened


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
