"""Thinking and answer of a reply told apart, token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from selfdraft.runtime.subsequences import Matcher

if TYPE_CHECKING:
    from selfdraft.runtime.thinking import ThinkTags


class Piece(NamedTuple):
    """Text of a reply as it comes."""

    text: str
    drafted: bool
    """The token that completed it was proposed by the MTP head."""
    thinking: bool
    """It stands between the tags; else it is part of the answer."""


class ThinkingSplit:
    """Sorts the texts of tokens into thinking and answer.

    Tags and the line breaks right behind them belong to neither. Tokens that may begin a tag are
    held back until that is decided. ``opened``: the reply begins inside thinking. ``tags`` None:
    everything is answer.
    """

    def __init__(self, tags: ThinkTags | None, *, opened: bool = False) -> None:
        self._start = Matcher(tags.start_ids) if tags else None
        self._end = Matcher(tags.end_ids) if tags else None
        self._thinking = opened
        self._behind_tag = opened
        self._waiting: list[Piece] = []

    def push(self, token: int, text: str, *, drafted: bool) -> list[Piece]:
        """Add a token and the text that is certain with it; the pieces that can be shown now."""
        tag = self._end if self._thinking else self._start
        self._waiting.append(Piece(text, drafted, self._thinking))
        if tag is None or not tag.push(token):
            return self._release(keep=tag.matched if tag else 0)
        self._waiting.clear()
        self._thinking, self._behind_tag = not self._thinking, True
        return []

    def rest(self, text: str = "") -> list[Piece]:
        """What was held back when the reply has ended, and ``text`` that came without a token."""
        self._waiting.append(Piece(text, False, self._thinking))
        return self._release(keep=0)

    def _release(self, *, keep: int) -> list[Piece]:
        count = len(self._waiting) - keep
        pieces, self._waiting = self._waiting[:count], self._waiting[count:]
        return [piece for piece in map(self._without_break, pieces) if piece.text]

    def _without_break(self, piece: Piece) -> Piece:
        if self._behind_tag:
            piece = piece._replace(text=piece.text.lstrip("\r\n"))
            self._behind_tag = not piece.text
        return piece
