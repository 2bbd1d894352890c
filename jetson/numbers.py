"""Numbers out of text that somebody else wrote."""

from __future__ import annotations

import re

_COUNT = re.compile(r"\d{1,18}", re.ASCII)


def count_from_text(text: str) -> int | None:
    """A count in decimal digits; ``None`` for anything else, and for more digits than any file of
    the kernel has (Python refuses thousands of them with an error)."""
    return int(text) if _COUNT.fullmatch(text) else None
