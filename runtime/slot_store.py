"""What slots hold, taken out and put in: saved caches, and prefixes that another slot has already."""

from __future__ import annotations

from collections.abc import Sequence

from selfdraft.runtime.backend import Backend, States
from selfdraft.runtime.slot_cache import PrefillAttention, SlotCache
from selfdraft.runtime.slot_checks import Capabilities, check_fits, check_states, saved_state_len
from selfdraft.runtime.slots import SlotTable


class SlotStore:
    """Caches and lengths of one loop's slots.

    ``drafting``: the head's cache has to hold what the backbone's does. ``prompts_differ``: a prefill
    computes other rows than decode steps would.
    """

    def __init__(
        self,
        backend: Backend,
        states: States,
        slots: SlotTable,
        *,
        drafting: bool,
        prompts_differ: bool,
    ) -> None:
        self._backend, self._states, self._slots = backend, states, slots
        self._drafting, self._prompts_differ = drafting, prompts_differ

    def rewind(self, slot: int, tokens: Sequence[int], *, num_prompt: int | None = None) -> int:
        """``SlotTable.rewind``, as this loop needs it; ``num_prompt`` None: all are a prompt."""
        prompt = self._prompt(tokens, num_prompt)
        return self._slots.rewind(slot, tokens, drafting=self._drafting, num_prompt=prompt)

    def shared(self, slot: int, tokens: Sequence[int], *, num_prompt: int | None = None) -> int:
        """What ``rewind`` would keep; nothing changes."""
        prompt = self._prompt(tokens, num_prompt)
        return self._slots.shared(slot, tokens, drafting=self._drafting, num_prompt=prompt)

    def _prompt(self, tokens: Sequence[int], num_prompt: int | None) -> int | None:
        if not self._prompts_differ:
            return None
        return len(tokens) if num_prompt is None else num_prompt

    def take_out(self, slot: int, prefill: PrefillAttention) -> SlotCache:
        """What a slot holds; the arrays are valid until the next step.

        After a pass that broke off a recurrent model's slot holds no rows.
        """
        slots = self._slots
        cached = slots.reachable(slot, slots.cached[slot])
        lengths = {"backbone": cached, "mtp": min(slots.drafter_cached[slot], cached)}
        arrays = self._backend.export_states(self._states, slot=slot, lengths=lengths)
        return SlotCache(
            tokens=tuple(slots.tokens[slot]),
            cached=lengths["backbone"],
            drafter_cached=lengths["mtp"],
            prompt_rows=min(slots.prompt_rows[slot], cached),
            prefill=prefill,
            arrays=arrays,
        )

    def check(self, slot: int, cache: SlotCache, loop: Capabilities) -> None:
        """Refuse what ``slot`` of ``loop`` could not go on from; nothing is changed yet."""
        check_fits(cache, loop)
        wanted = self._backend.export_states(self._states, slot=slot, lengths=cache.lengths)
        check_states(cache.arrays, wanted)
        saved_state_len(cache)

    def put_in(self, slot: int, cache: SlotCache) -> None:
        """Let ``slot`` hold ``cache``."""
        self._backend.import_states(
            self._states, slot=slot, lengths=cache.lengths, arrays=cache.arrays
        )
        slots = self._slots
        slots.tokens[slot] = list(cache.tokens)
        slots.cached[slot] = cache.cached
        slots.drafter_cached[slot] = cache.drafter_cached
        slots.prompt_rows[slot] = cache.prompt_rows
        if slots.state_len is not None:
            slots.state_len[slot] = saved_state_len(cache)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Let ``target`` hold what ``source`` has in its caches of its first ``length`` tokens.

        The token behind them comes along: the last row of the MTP cache depends on it. Where the
        recurrent states of ``source`` are further on, ``target`` gets none of its rows.
        """
        slots = self._slots
        cached = slots.reachable(source, min(slots.cached[source], length))
        lengths = {"backbone": cached, "mtp": min(slots.drafter_cached[source], cached)}
        arrays = self._backend.export_states(self._states, slot=source, lengths=lengths)
        slots.rewind(target, (), drafting=False)  # should the copy fail, it holds nothing
        self._backend.import_states(self._states, slot=target, lengths=lengths, arrays=arrays)
        slots.tokens[target] = slots.tokens[source][: length + 1]
        slots.cached[target] = cached
        slots.drafter_cached[target] = lengths["mtp"]
        slots.prompt_rows[target] = min(slots.prompt_rows[source], cached)
        if slots.state_len is not None:
            slots.state_len[target] = slots.state_len[source] if cached else 0
