"""A reply on its way out: pieces of text, what they are, and the end."""

from __future__ import annotations

from dataclasses import dataclass

from selfdraft.cli.serving.asked import Asked
from selfdraft.runtime.result import GenerationResult, TokenEvent
from selfdraft.runtime.thought_split import Part, ThoughtSplit

STOP_REASONS = ("eos", "stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What some tokens add to a reply."""

    answer: str
    thought: str
    events: tuple[TokenEvent, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.answer or self.thought or self.events)


class ReplyParts:
    """Follows one reply from its first token to its result."""

    def __init__(self, asked: Asked) -> None:
        self._split = ThoughtSplit(asked.tags, _before(asked))
        self._num_chars = 0
        self._drafted: list[bool] = []
        self._answer, self._thought = "", ""

    @property
    def drafted(self) -> tuple[bool, ...]:
        """For each token so far: proposed by the MTP head."""
        return tuple(self._drafted)

    @property
    def answer(self) -> str:
        """The answer so far."""
        return self._answer

    @property
    def thought(self) -> str | None:
        """The thoughts so far; None where there are none."""
        return self._thought or None

    @property
    def num_thought(self) -> int:
        """Tokens of thinking so far."""
        return self._split.num_thought

    def take(self, events: list[TokenEvent]) -> Delta:
        """The pieces that come with ``events``."""
        parts: list[Part] = []
        for event in events:
            self._num_chars += len(event.text)
            self._drafted.append(event.drafted)
            parts += self._split.push(event.token, event.text)
        return self._delta(parts, events)

    def finish(self, result: GenerationResult) -> Delta:
        """What was held back until the end."""
        return self._delta(self._split.finish((result.text or "")[self._num_chars :]), [])

    def _delta(self, parts: list[Part], events: list[TokenEvent]) -> Delta:
        delta = _delta(parts, events)
        self._answer += delta.answer
        self._thought += delta.thought
        return delta


def finish_reason(result: GenerationResult) -> str:
    """OpenAI's word for how the reply ended."""
    return "stop" if result.finish_reason in STOP_REASONS else "length"


def _before(asked: Asked) -> tuple[int, ...]:
    return (*asked.request.prompt_ids, *asked.request.resumed_token_ids)


def _delta(parts: list[Part], events: list[TokenEvent]) -> Delta:
    return Delta(
        answer="".join(part.text for part in parts if not part.is_thought),
        thought="".join(part.text for part in parts if part.is_thought),
        events=tuple(events),
    )
