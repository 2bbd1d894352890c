"""Token ids in, text out: never half a character, never a raw control character.

``TextStream`` holds back the bytes of an unfinished UTF-8 character (at most three) until the
next tokens complete it or prove it wrong, so the joined deltas equal the decoding of all tokens
at once. Each token costs its own bytes only, whatever was streamed before.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selfdraft.runtime.tokenizer import Tokenizer


class TextStream:
    """Turns the tokens of one reply into text deltas."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids if skip_special else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip_space = tokenizer.strips_first_space

    def push(self, token_ids: Iterable[int]) -> str:
        """Text that is certain after these tokens; may be empty."""
        data = b"".join(self._tokenizer.token_bytes(i) for i in token_ids if i not in self._hidden)
        if self._strip_space and data:
            self._strip_space = False
            data = data[1:] if data.startswith(b" ") else data
        return self._decoder.decode(data)

    def finish(self) -> str:
        """The rest at the end of the reply: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)

    @property
    def held_bytes(self) -> int:
        """Bytes of the character that is not complete yet."""
        return len(self._decoder.getstate()[0])


def terminal_safe(text: str) -> str:
    """``text`` with every control character made visible; newline and tab stay.

    A model may write escape sequences, carriage returns or bidirectional overrides, which would
    move the cursor, retitle the window or reorder what the user reads. C0 characters become
    their Unicode pictures, the rest ``<U+XXXX>``.
    """
    return text.translate(_VISIBLE)


def _visible_table() -> dict[int, str]:
    table = {code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)}
    table[0x7F] = "\u2421"
    bidi = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    separators = [0x2028, 0x2029]
    for code in [*range(0x80, 0xA0), *bidi, *separators]:
        table[code] = f"<U+{code:04X}>"
    return table


_VISIBLE = _visible_table()
