"""What of a reply is thinking and what is the answer, token by token.

By the same rule as the thinking budget: the tags are sequences of tokens, not texts. The tags
themselves belong to neither part; everything else of the text belongs to one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from selfdraft.runtime.request import Request
from selfdraft.runtime.subsequences import Matcher
from selfdraft.runtime.thinking import ThinkTags
from selfdraft.runtime.thinking_text import known_tags
from selfdraft.runtime.tokenizer import Tokenizer


class Part(NamedTuple):
    """A piece of a reply's text."""

    text: str
    is_thought: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TagTexts:
    """Thinking tags and how they look in the text: empty where they are hidden control tokens."""

    tags: ThinkTags
    start: str
    end: str


def tag_texts(tokenizer: Tokenizer, tags: ThinkTags) -> TagTexts:
    """The tags with their texts."""
    return TagTexts(
        tags=tags, start=tokenizer.decode(tags.start_ids), end=tokenizer.decode(tags.end_ids)
    )


def reply_tags(tokenizer: Tokenizer, request: Request) -> TagTexts | None:
    """The tags by which a reply is parted: those of its thinking budget, else the tokenizer's own."""
    tags = request.thinking.tags if request.thinking else known_tags(tokenizer)
    return tag_texts(tokenizer, tags) if tags else None


class ThoughtSplit:
    """Follows one reply; without tags all of it is the answer."""

    def __init__(self, tags: TagTexts | None, prompt_ids: Sequence[int]) -> None:
        self._tags = tags
        self._matchers: tuple[Matcher, Matcher] | None = None
        self.is_open = False
        """Thinking goes on."""
        if tags is not None:
            self._matchers = Matcher(tags.tags.start_ids), Matcher(tags.tags.end_ids)
            self.is_open = tags.tags.open_in(prompt_ids)
        self._held: list[str] = []
        """Texts of tokens that may begin a tag."""
        self.num_thought = 0
        """Tokens of thinking so far, a begun end tag included."""

    def push(self, token: int, text: str) -> list[Part]:
        """Take in a token with its text; what can be told apart now."""
        if self._tags is None or self._matchers is None:
            return _parts(text, False)
        self._held.append(text)
        self.num_thought += self.is_open
        matcher = self._matchers[self.is_open]
        if matcher.push(token):
            return self._turn(self._tags)
        free = len(self._held) - matcher.matched
        released = "".join(self._held[:free])
        del self._held[:free]
        return _parts(released, self.is_open)

    def finish(self, text: str = "") -> list[Part]:
        """The end of the reply, and a last piece of its text."""
        text = "".join(self._held) + text
        self._held = []
        return _parts(text, self.is_open)

    def _turn(self, tags: TagTexts) -> list[Part]:
        """A tag is complete: what stood before it is the one, what follows is the other."""
        spelled = tags.end if self.is_open else tags.start
        if self.is_open:
            self.num_thought -= len(tags.tags.end_ids)
        text = "".join(self._held)
        before, _, after = (
            text.rpartition(spelled) if spelled in text and spelled else (text, "", "")
        )
        self._held = []
        was_open, self.is_open = self.is_open, not self.is_open
        assert self._matchers is not None
        self._matchers[self.is_open].reset()
        return [*_parts(before, was_open), *_parts(after, self.is_open)]


def _parts(text: str, is_thought: bool) -> list[Part]:
    return [Part(text, is_thought)] if text else []
