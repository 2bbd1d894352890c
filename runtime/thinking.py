"""Thinking budgets: tags, the parameters of a request, and the processor that keeps to them.

A reply may think for ``budget`` tokens in all; then the processor puts in the wrap-up sentence and
the end sequence, token by token, as the only ones that can be drawn. It is a processor like any
other, so plain and speculative decoding give the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selfdraft.errors import ConfigError
from selfdraft.runtime.char_completion import CharCompletion
from selfdraft.runtime.processors import Processor
from selfdraft.runtime.row_view import RowView
from selfdraft.runtime.subsequences import Matcher, last_end

LEVELS = (0, 64, 128, 256, 512, 1024, 2048, 4096)
"""Budgets that reports are made for; any other number works too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkTags:
    """Token sequences that open and close thinking. Raises ``ConfigError`` for an empty one."""

    start_ids: tuple[int, ...]
    end_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.start_ids or not self.end_ids:
            raise ConfigError("a thinking tag is empty", hint="give both tags as text")
        if self.start_ids == self.end_ids:
            raise ConfigError("both thinking tags are the same", hint="give two different ones")

    def open_in(self, token_ids: Sequence[int]) -> bool:
        """Whether ``token_ids`` end inside thinking."""
        opened = last_end(token_ids, self.start_ids)
        return opened is not None and opened > (last_end(token_ids, self.end_ids) or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """How long a reply may think. Raises ``ConfigError`` for a budget below 0."""

    budget: int
    """Tokens between the tags over the whole reply; those in the prompt do not count."""
    tags: ThinkTags
    wrap_up_ids: tuple[int, ...] = ()
    """Sentence put in before the end sequence where thinking is cut."""

    def __post_init__(self) -> None:
        whole = isinstance(self.budget, int) and not isinstance(self.budget, bool)
        if not whole or self.budget < 0:
            raise ConfigError(
                f"thinking budget is {self.budget!r}", hint="give a whole number, 0 or more"
            )
        if last_end(self.wrap_up_ids, self.tags.end_ids) is not None:
            raise ConfigError(
                "the wrap-up sentence holds the end tag", hint="leave it out: it follows by itself"
            )

    def token_ids(self) -> dict[str, tuple[int, ...]]:
        """Every token id that the budget may put in or looks for, by what it is."""
        return {
            "thinking start": self.tags.start_ids,
            "thinking end": self.tags.end_ids,
            "wrap-up": self.wrap_up_ids,
        }


class ThinkingBudget(Processor):
    """Ends thinking when the budget is spent.

    ``completion`` keeps the cut from falling into a UTF-8 character: the character is completed
    first, by at most three tokens. Where the last tokens before the border begin the end sequence,
    only its rest is put in. Thinking that starts anew has what is left of the budget.
    """

    def __init__(
        self,
        thinking: Thinking,
        *,
        opened: bool,
        completion: CharCompletion | None = None,
    ) -> None:
        self._thinking = thinking
        self._completion = completion
        self._start = Matcher(thinking.tags.start_ids)
        self._end = Matcher(thinking.tags.end_ids)
        self._open = opened
        self._used = 0
        """Thinking tokens so far, those of a begun end sequence included."""
        self._used_here = 0
        """Those since thinking was last opened."""
        self._pending = b""
        """Bytes of a character that is not complete yet."""
        self._queue: tuple[int, ...] = ()
        """Tokens that must follow."""
        self._num_tokens = 0
        self.forced_at: tuple[int, ...] = ()
        """Indices in the reply of the tokens that were put in."""
        self.completing_tokens = 0
        self.triggered = False
        if opened:
            self._check_border()

    @property
    def active(self) -> bool:
        return bool(self._queue) or self._waiting

    @property
    def wanted_ids(self) -> Sequence[int]:
        if self._queue:
            return self._queue[:1]
        assert self._completion is not None
        return self._completion.wanted(self._pending)

    @property
    def forced(self) -> int | None:
        return self._queue[0] if self._queue else None

    def may_force_within(self, count: int) -> bool:
        return bool(self._queue) or self._thinking.budget - self._used < count

    def process(self, row: RowView) -> None:
        if self._queue:
            # A ban must not keep thinking open: the budget holds against every other rule.
            row.force(self._queue[0], despite_bans=True)
        else:
            assert self._completion is not None
            row.keep_where(self._completion.mask(self._pending))

    def advance(self, token: int) -> None:
        if self._queue:
            self._take_forced(token)
        elif self._open:
            self._take_thought(token)
        elif self._start.push(token):
            self._open, self._pending, self._used_here = True, b"", 0
            self._end.reset()
            self._check_border()
        self._num_tokens += 1

    def clone(self) -> ThinkingBudget:
        twin = object.__new__(ThinkingBudget)
        twin.__dict__.update(self.__dict__)
        twin._start, twin._end = self._start.clone(), self._end.clone()
        return twin

    @property
    def _waiting(self) -> bool:
        """The budget is spent in the middle of a character."""
        return self._open and not self._queue and self._used >= self._thinking.budget

    def _take_forced(self, token: int) -> None:
        # Only a benchmark's made-up verdict delivers another token; thinking then stays open.
        if token == self._queue[0]:
            self._queue = self._queue[1:]
            self.forced_at = (*self.forced_at, self._num_tokens)
            if not self._queue:
                self._close()

    def _take_thought(self, token: int) -> None:
        self.completing_tokens += self._waiting
        self._used += 1
        self._used_here += 1
        if self._end.push(token):
            self._used -= len(self._thinking.tags.end_ids)
            self._close()
            return
        if self._completion:
            self._pending = self._completion.pending(self._pending, token)
        self._check_border()

    def _close(self) -> None:
        self._open = False
        self._start.reset()

    def _check_border(self) -> None:
        if self._used < self._thinking.budget:
            return
        if self._completion and self._pending and self._completion.possible(self._pending):
            return
        self.triggered = True
        end_ids, begun = self._thinking.tags.end_ids, self._end.matched
        if begun:
            self._used -= begun
            self._queue = end_ids[begun:]
        else:
            self._queue = (*(self._thinking.wrap_up_ids if self._used_here else ()), *end_ids)
