"""The slots of a loop: the tokens of each, and how many of them each cache holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selfdraft.recurrent import state_length
from selfdraft.runtime.backend import IntArray, Step

UNKNOWN_LEN = 2**62
"""Of recurrent states that must not be used: every length is shorter."""


class SlotTable:
    """Tokens and committed lengths of B slots.

    Between steps ``tokens[b]`` are x_0..x_n, and ``cached[b]`` is n: the last one is drawn, but in
    no cache yet. ``drafter_cached[b]`` counts rows of the MTP cache; its row p holds token p + 1.
    """

    def __init__(self, batch: int, *, recurrent: bool = False) -> None:
        """``recurrent``: the model has states that cannot be cut back to any length."""
        self.tokens: list[list[int]] = [[] for _ in range(batch)]
        # Lists, not arrays: right after an engine pass every NumPy call costs some 10 µs.
        self.cached = [0] * batch
        self.drafter_cached = [0] * batch
        self.live = [False] * batch
        """Slots with an unfinished request."""
        self.attend_all = [0] * batch
        """1 where the newest rows belong to a prompt."""
        self.prompt_rows = [0] * batch
        """Leading rows that a prefill computed; those behind it come from decode steps."""
        self.state_len: list[int] | None = [0] * batch if recurrent else None
        """Tokens inside the recurrent states: no shorter length can be gone back to."""

    @property
    def batch(self) -> int:
        return len(self.tokens)

    def note_pass(self, slot: int, num_rows: int) -> None:
        """The target has run ``num_rows`` rows behind the ``cached`` ones of a slot."""
        if self.state_len is not None:
            self.state_len[slot] = state_length(self.cached[slot], num_rows)

    def reachable(self, slot: int, length: int) -> int:
        """``length`` where the states of ``slot`` can be gone back to it, else 0."""
        return length if self.state_len is None or length >= self.state_len[slot] else 0

    def lose_state(self, slot: int) -> None:
        """A pass broke off: some layers' states may have moved on, so that none can be used."""
        if self.state_len is not None:
            self.state_len[slot] = UNKNOWN_LEN

    def truncate(self, slot: int, length: int) -> None:
        """Let ``slot`` hold its first ``length`` tokens; the last one is in no cache."""
        assert 0 < length <= len(self.tokens[slot])
        del self.tokens[slot][length:]
        self.cached[slot] = min(self.cached[slot], length - 1)
        self.drafter_cached[slot] = min(self.drafter_cached[slot], length - 1)
        self.prompt_rows[slot] = min(self.prompt_rows[slot], length - 1)

    def rewind(
        self, slot: int, tokens: Sequence[int], *, drafting: bool, num_prompt: int | None = None
    ) -> int:
        """Let ``slot`` hold ``tokens``, keeping what the caches share with them.

        ``num_prompt``: so many tokens are a prompt, and decode steps compute other rows than a
        prefill would. Rows of the other kind do not stay: what a prompt and a reply hold never
        depends on how they came about. None: both compute the same.

        Returns the number of leading tokens whose rows stay. The last token is always computed
        again, for its logits. When drafting, both caches go back to one length: a row of the MTP
        cache depends on the token after it, and needs the hidden state of its own position.
        Where that lies before the recurrent states, nothing is kept.
        """
        kept, drafter_kept = self._kept(slot, tokens, drafting, num_prompt)
        # Lengths first: a cache may hold less than the tokens, never more.
        self.cached[slot] = kept
        self.drafter_cached[slot] = min(drafter_kept, kept)
        self.prompt_rows[slot] = min(self.prompt_rows[slot], kept)
        self.tokens[slot] = list(tokens)
        return kept

    def shared(
        self, slot: int, tokens: Sequence[int], *, drafting: bool, num_prompt: int | None = None
    ) -> int:
        """Leading tokens whose rows ``rewind`` would keep; nothing changes."""
        return self._kept(slot, tokens, drafting, num_prompt)[0]

    def _kept(
        self, slot: int, tokens: Sequence[int], drafting: bool, num_prompt: int | None
    ) -> tuple[int, int]:
        """Rows of both caches that can stay when ``slot`` comes to hold ``tokens``."""
        common = common_prefix(self.tokens[slot], tokens)
        kept = min(self.cached[slot], common, max(len(tokens) - 1, 0))
        drafter_kept = min(self.drafter_cached[slot], max(common - 1, 0))
        if drafting:
            kept = min(kept, drafter_kept)
        if num_prompt is not None and num_prompt != self.prompt_rows[slot]:
            kept = min(kept, self.prompt_rows[slot], num_prompt)
        return self.reachable(slot, kept), drafter_kept


class StepArrays:
    """Inputs of a pass over n rows with m logit rows, filled anew for each pass."""

    def __init__(self, batch: int, *, num_rows: int, num_logit_rows: int) -> None:
        self.input_ids: IntArray = np.zeros((batch, num_rows), dtype=np.int64)
        self._last_rows = [0] * batch
        self._by_slot: IntArray = np.zeros(3 * batch, dtype=np.int64)
        past_len, row_count, attend_all = self._by_slot.reshape(3, batch)
        self.step = Step(
            past_len=past_len,
            row_count=row_count,
            attend_all=attend_all,
            row_index=np.zeros((batch, num_logit_rows), dtype=np.int64),
        )

    def fill(
        self, *, past_len: Sequence[int], row_count: Sequence[int], attend_all: Sequence[int]
    ) -> Step:
        """The step with these numbers, one for each slot; ``row_index`` stays as it is."""
        self._by_slot[:] = [*past_len, *row_count, *attend_all]
        return self.step

    def ask_last_rows(self, row_count: Sequence[int]) -> None:
        """Let each slot's one logit row be the last of its ``row_count``."""
        last_rows = [max(count - 1, 0) for count in row_count]
        if last_rows != self._last_rows:
            self.step.row_index[:, 0] = last_rows
            self._last_rows = last_rows


class StepPool:
    """The ``StepArrays`` of passes with one logit row, by their numbers of slots and rows."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[int, int], StepArrays] = {}

    def get(self, batch: int, num_rows: int) -> StepArrays:
        """Arrays for ``num_rows`` rows of so many slots; the same object each time."""
        arrays = self._arrays.get((batch, num_rows))
        if arrays is None:
            arrays = StepArrays(batch, num_rows=num_rows, num_logit_rows=1)
            self._arrays[batch, num_rows] = arrays
        return arrays


class VerifyPool:
    """The ``StepArrays`` of passes that want the logits of every row."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[int, int], StepArrays] = {}

    def get(self, batch: int, num_rows: int) -> StepArrays:
        """Arrays for ``num_rows`` rows of so many slots; the same object each time."""
        arrays = self._arrays.get((batch, num_rows))
        if arrays is None:
            arrays = StepArrays(batch, num_rows=num_rows, num_logit_rows=num_rows)
            arrays.step.row_index[:] = np.arange(num_rows)
            self._arrays[batch, num_rows] = arrays
        return arrays


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Leading tokens that both have."""
    length = min(len(first), len(second))
    # Whole blocks at a time: prompts of 100,000 tokens are held against every slot.
    start = 0
    while start < length and list(first[start : start + 512]) == list(second[start : start + 512]):
        start += 512
    for index in range(start, length):
        if first[index] != second[index]:
            return index
    return length
