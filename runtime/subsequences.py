"""Finding a short token sequence in a stream of tokens."""

from __future__ import annotations

from collections.abc import Sequence


class Matcher:
    """Follows how much of ``sequence`` the newest tokens have (Knuth, Morris and Pratt, 1977)."""

    def __init__(self, sequence: Sequence[int]) -> None:
        self._sequence = tuple(sequence)
        self._fallback = _fallback(self._sequence)
        self.matched = 0
        """Leading tokens of the sequence that the newest tokens are."""

    def push(self, token: int) -> bool:
        """Take in the next token; whether the sequence is complete now (it then starts anew)."""
        while self.matched and self._sequence[self.matched] != token:
            self.matched = self._fallback[self.matched - 1]
        self.matched += self._sequence[self.matched] == token
        if self.matched < len(self._sequence):
            return False
        self.matched = 0
        return True

    def reset(self) -> None:
        """Forget the tokens so far."""
        self.matched = 0

    def clone(self) -> Matcher:
        """A matcher in the same place."""
        twin = object.__new__(Matcher)
        twin.__dict__.update(self.__dict__)
        return twin


def last_end(tokens: Sequence[int], sequence: Sequence[int]) -> int | None:
    """Index behind the last place where ``tokens`` hold ``sequence``."""
    count = len(sequence)
    for end in range(len(tokens), count - 1, -1):
        if tuple(tokens[end - count : end]) == tuple(sequence):
            return end
    return None


def _fallback(sequence: tuple[int, ...]) -> list[int]:
    """For each prefix, the length of the longest shorter prefix that it ends with."""
    lengths = [0] * len(sequence)
    for index in range(1, len(sequence)):
        length = lengths[index - 1]
        while length and sequence[length] != sequence[index]:
            length = lengths[length - 1]
        lengths[index] = length + (sequence[length] == sequence[index])
    return lengths
