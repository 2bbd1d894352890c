"""Changes to a row's logits before its token is drawn: the seam, and the chain.

Rows are seen in order, each with the history before it: the prompt, the reply so far, and the
drafts that were accepted before this row of the same step. Order of a chain: docs/decoding.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from selfdraft.runtime.row_view import RowView

Kind = TypeVar("Kind", bound="Processor")


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

    @property
    def forced(self) -> int | None:
        """The only token that can follow, where that is known without the logits."""
        return None

    def may_force_within(self, count: int) -> bool:
        """Whether ``forced`` may say a token before so many more tokens have followed."""
        return False

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

    def find(self, kind: type[Kind]) -> Kind | None:
        """The first processor of this kind, in its present state."""
        return next((p for p in self._processors if isinstance(p, kind)), None)

    def plan(self, drafts: Sequence[int], depth: int) -> tuple[list[int], int]:
        """Up to ``depth`` drafts for the next rows, and how many of them are of ``drafts``.

        From the first row on whose token is forced after the drafts before it, the forced tokens
        stand in their place: those are certain to be accepted where the drafts before them are.
        """
        forcing = [p.clone() for p in self._processors if p.may_force_within(depth)]
        if not forcing:
            return list(drafts[:depth]), min(len(drafts), depth)
        own = list(drafts[:depth])
        planned: list[int] = []
        while len(planned) < depth:
            token = next((p.forced for p in forcing if p.forced is not None), None)
            if token is not None:
                del own[len(planned) :]
            elif len(planned) < len(own):
                token = own[len(planned)]
            else:
                break
            planned.append(token)
            for processor in forcing:
                processor.advance(token)
        return planned, len(own)

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
