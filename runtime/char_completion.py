"""Tokens that complete a UTF-8 character which the tokens before left unfinished."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

_LONGEST_TAIL = 3
"""Bytes of an unfinished character at most."""
_SMALL_LIST = 1024
"""Up to this number all completing tokens are looked up, so that no row must be fetched."""

Mask = NDArray[np.bool_]


class CharCompletion:
    """What can follow an unfinished character, by the bytes of every token.

    ``token_bytes`` gives the bytes of a token id below ``vocab_size``. The vocabulary is read when
    the first unfinished character is asked about.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], *, vocab_size: int) -> None:
        self._token_bytes = token_bytes
        self._vocab_size = vocab_size
        self._continuing: list[tuple[int, bytes]] | None = None
        self._found: dict[bytes, list[int]] = {}

    def pending(self, before: bytes, token: int) -> bytes:
        """Bytes of the character that is unfinished after ``token``; ``before`` it, those."""
        return _unfinished(before + self._token_bytes(token))

    def possible(self, pending: bytes) -> bool:
        """Whether any token goes on with the character."""
        return bool(self._ids(pending))

    def wanted(self, pending: bytes) -> Sequence[int]:
        """Tokens that go on with it, where they are few."""
        ids = self._ids(pending)
        return ids if len(ids) <= _SMALL_LIST else ()

    def mask(self, pending: bytes) -> Mask:
        """For each token, whether it goes on with the character and begins no other one."""
        mask = np.zeros(self._vocab_size, dtype=bool)
        mask[self._ids(pending)] = True
        return mask

    def _ids(self, pending: bytes) -> list[int]:
        if pending not in self._found:
            if self._continuing is None:
                self._continuing = self._tokens_inside_a_character()
            self._found[pending] = [
                token for token, data in self._continuing if _goes_on(pending, data)
            ]
        return self._found[pending]

    def _tokens_inside_a_character(self) -> list[tuple[int, bytes]]:
        known = ((token, self._token_bytes(token)) for token in range(self._vocab_size))
        return [(token, data) for token, data in known if data and 0x80 <= data[0] < 0xC0]


def _unfinished(data: bytes) -> bytes:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder.decode(data[-_LONGEST_TAIL:])
    return decoder.getstate()[0]


def _goes_on(pending: bytes, data: bytes) -> bool:
    """Whether ``data`` brings the character nearer to its end, and leaves no other unfinished."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        text = decoder.decode(pending + data)
    except UnicodeDecodeError:
        return False
    return not (text and decoder.getstate()[0])
