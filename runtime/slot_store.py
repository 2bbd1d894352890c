"""What slots hold, taken out and put in: saved caches, and prefixes that another slot has already."""

from __future__ import annotations

from selfdraft.runtime.backend import Backend, States
from selfdraft.runtime.slot_cache import PrefillAttention, SlotCache
from selfdraft.runtime.slot_checks import Capabilities, check_fits, check_states
from selfdraft.runtime.slots import SlotTable


class SlotStore:
    """Caches and lengths of one loop's slots."""

    def __init__(self, backend: Backend, states: States, slots: SlotTable) -> None:
        self._backend, self._states, self._slots = backend, states, slots

    def take_out(self, slot: int, prefill: PrefillAttention) -> SlotCache:
        """What a slot holds; the arrays are valid until the next step."""
        slots = self._slots
        lengths = {"backbone": slots.cached[slot], "mtp": slots.drafter_cached[slot]}
        arrays = self._backend.export_states(self._states, slot=slot, lengths=lengths)
        return SlotCache(
            tokens=tuple(slots.tokens[slot]),
            cached=lengths["backbone"],
            drafter_cached=lengths["mtp"],
            prompt_rows=slots.prompt_rows[slot],
            prefill=prefill,
            arrays=arrays,
        )

    def check(self, slot: int, cache: SlotCache, loop: Capabilities) -> None:
        """Refuse what ``slot`` of ``loop`` could not go on from; nothing is changed yet."""
        check_fits(cache, loop)
        wanted = self._backend.export_states(self._states, slot=slot, lengths=cache.lengths)
        check_states(cache.arrays, wanted)

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

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Let ``target`` hold the first ``length`` tokens of ``source``, as far as its caches go."""
        slots = self._slots
        cached = min(slots.cached[source], length)
        lengths = {"backbone": cached, "mtp": min(slots.drafter_cached[source], cached)}
        arrays = self._backend.export_states(self._states, slot=source, lengths=lengths)
        self._backend.import_states(self._states, slot=target, lengths=lengths, arrays=arrays)
        slots.tokens[target] = slots.tokens[source][:length]
        slots.cached[target] = cached
        slots.drafter_cached[target] = lengths["mtp"]
        slots.prompt_rows[target] = min(slots.prompt_rows[source], cached)
