"""Changes to a row's logits before its token is drawn: the seam, and the chain.

Rows are seen in order, each with the history before it: the prompt, the reply so far, and the
drafts that were accepted before this row of the same step. Order of a chain: docs/decoding.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from selfdraft.runtime.row_view import RowView


class Processor(Protocol):
    """One rule of one sequence, with its state. Subclass it for the defaults.

    For each row of a sequence: ``active``, ``wanted_ids`` and ``process`` (perhaps twice, on the
    candidates and then on the whole row, so it changes no state), then ``advance``.
    """

    @property
    def active(self) -> bool:
        """Whether the next row changes."""
        return True

    @property
    def wanted_ids(self) -> Sequence[int]:
        """Tokens whose logits ``process`` may raise, or that may be the only ones left.

        They are in the view even where they are no candidates. All other logits may only fall.
        """
        return ()

    def process(self, row: RowView) -> None:
        """Change the next row's logits (``-inf`` bans a token)."""
        ...

    def advance(self, token: int) -> None:
        """``token`` follows; called once for each token of the reply."""
        return

    def clone(self) -> Processor:
        """A copy with a state of its own: to start a sequence, or to return to this point."""
        ...


class ProcessorChain:
    """The processors of one sequence, applied in order.

    Works on clones. ``clone`` branches off (to look ahead); ``rewind`` takes tokens back.
    """

    def __init__(self, processors: Sequence[Processor]) -> None:
        self._start = [processor.clone() for processor in processors]
        self._processors = [processor.clone() for processor in processors]
        self._tokens: list[int] = []

    def __bool__(self) -> bool:
        """Whether there is any processor."""
        return bool(self._start)

    def active(self) -> list[Processor]:
        """Those that change the next row, in order."""
        return [processor for processor in self._processors if processor.active]

    def advance(self, token: int) -> None:
        """``token`` follows."""
        self._tokens.append(token)
        for processor in self._processors:
            processor.advance(token)

    def rewind(self, count: int) -> None:
        """Take back the last ``count`` tokens, as if they had never followed."""
        assert 0 <= count <= len(self._tokens)
        if not count:
            return
        kept = self._tokens[: len(self._tokens) - count]
        self._processors = [processor.clone() for processor in self._start]
        self._tokens = []
        for token in kept:
            self.advance(token)

    def clone(self) -> ProcessorChain:
        """A chain in the same state that goes its own way from here."""
        twin = ProcessorChain(())
        twin._start = self._start
        twin._processors = [processor.clone() for processor in self._processors]
        twin._tokens = list(self._tokens)
        return twin
