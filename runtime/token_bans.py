"""Processors that make tokens impossible: lists, words, repeated n-grams, an end that is too early."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from selfdraft.runtime.processors import Processor
from selfdraft.runtime.row_view import RowView

_SMALL_LIST = 1024
"""Allowed tokens up to this number are all put into the view, so that no row must be fetched."""


class BannedTokens(Processor):
    """Tokens that are never drawn."""

    def __init__(self, ids: Sequence[int], *, vocab_size: int) -> None:
        self._banned = _mask(ids, vocab_size)

    def process(self, row: RowView) -> None:
        row.ban_where(self._banned)

    def clone(self) -> BannedTokens:
        return self  # it has no state


class AllowedTokens(Processor):
    """The only tokens that are drawn."""

    def __init__(self, ids: Sequence[int], *, vocab_size: int) -> None:
        self._allowed = _mask(ids, vocab_size)
        self._ids = sorted(set(ids))

    @property
    def wanted_ids(self) -> Sequence[int]:
        return self._ids if len(self._ids) <= _SMALL_LIST else ()

    def process(self, row: RowView) -> None:
        row.keep_where(self._allowed, num_allowed=len(self._ids))

    def clone(self) -> AllowedTokens:
        return self  # it has no state


class BadWords(Processor):
    """Bans the last token of each sequence where the reply ends with the tokens before it."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self._sequences = [list(sequence) for sequence in sequences]
        self._reply: list[int] = []
        self._banned = self._next_banned()

    @property
    def active(self) -> bool:
        return bool(self._banned)

    def process(self, row: RowView) -> None:
        row.ban(self._banned)

    def advance(self, token: int) -> None:
        self._reply.append(token)
        self._banned = self._next_banned()

    def clone(self) -> BadWords:
        twin = BadWords(self._sequences)
        twin._reply = list(self._reply)
        twin._banned = list(self._banned)
        return twin

    def _next_banned(self) -> list[int]:
        reply = self._reply
        return [
            last
            for *before, last in self._sequences
            if len(before) <= len(reply) and reply[len(reply) - len(before) :] == before
        ]


class MinTokens(Processor):
    """Bans the tokens that end a reply until ``count`` tokens are delivered."""

    def __init__(self, count: int, end_ids: Sequence[int]) -> None:
        self._left = count
        self._end_ids = list(end_ids)

    @property
    def active(self) -> bool:
        return self._left > 0 and bool(self._end_ids)

    def process(self, row: RowView) -> None:
        row.ban(self._end_ids)

    def advance(self, token: int) -> None:
        self._left -= self._left > 0

    def clone(self) -> MinTokens:
        return MinTokens(self._left, self._end_ids)


class NoRepeatNgram(Processor):
    """Bans every token that would make the last ``size`` tokens a repetition of earlier ones.

    Paulus et al., "A deep reinforced model for abstractive summarization" (2017), section 2.5; prompt
    and reply count as one text.
    """

    def __init__(self, size: int, prompt_ids: Sequence[int]) -> None:
        self._size = size
        self._recent: tuple[int, ...] = ()
        self._followers: dict[tuple[int, ...], set[int]] = {}
        for token in prompt_ids:
            self.advance(token)

    @property
    def active(self) -> bool:
        return self._recent in self._followers

    def process(self, row: RowView) -> None:
        row.ban(self._followers[self._recent])

    def advance(self, token: int) -> None:
        if len(self._recent) == self._size - 1:
            self._followers.setdefault(self._recent, set()).add(token)
        kept = self._size - 1
        self._recent = (*self._recent, token)[-kept:] if kept else ()

    def clone(self) -> NoRepeatNgram:
        twin = NoRepeatNgram(self._size, ())
        twin._recent = self._recent
        twin._followers = {key: set(tokens) for key, tokens in self._followers.items()}
        return twin


def _mask(ids: Sequence[int], vocab_size: int) -> NDArray[np.bool_]:
    mask = np.zeros(vocab_size, dtype=bool)
    mask[list(ids)] = True
    return mask
