"""Passes over some neighbouring slots of a loop: slots that idle at the edges cost nothing.

Every state has the slot as its leading axis, so those of neighbouring slots are one piece of memory.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple, Protocol, runtime_checkable

from selfdraft.runtime.backend import Backend, DeviceTensor, FloatArray, States


@runtime_checkable
class NarrowBackend(Protocol):
    """A backend that runs passes over a part of the slots; others run all slots each time."""

    def narrow(self, states: Any, *, first: int, count: int) -> Any:
        """The states of slots ``first`` to ``first + count``: the same memory, nothing is copied."""
        ...


class SlotRange:
    """Neighbouring slots from ``first`` on; row b of a pass over them is slot ``first + b``.

    Every step asks for the same few numbers, so they are worked out once.
    """

    __slots__ = ("_part", "first", "slots", "states", "width")

    def __init__(self, first: int, states: States) -> None:
        self.first = first
        self.states = states
        self.width = states.batch
        """Slots."""
        self.slots = range(first, first + self.width)
        self._part = slice(first, first + self.width)

    def holds(self, slots: Collection[int]) -> bool:
        """Whether all of ``slots`` are among them."""
        return all(slot in self.slots for slot in slots)

    def part(self, values: list[int]) -> list[int]:
        """What belongs to these slots, of a list with a value for each slot of the loop."""
        return values[self._part]


class TapRows(NamedTuple):
    """Hidden states of the target's rows: row i of slot b is ``hidden[b - span.first, i]``."""

    hidden: DeviceTensor | FloatArray
    """``[span.width, num_rows, H]``."""
    num_rows: int
    span: SlotRange


class SlotRanges:
    """The ranges of one loop's slots; each is made once."""

    def __init__(self, backend: Backend, states: States) -> None:
        self._narrow = backend.narrow if isinstance(backend, NarrowBackend) else None
        self.whole = SlotRange(0, states)
        self._made: dict[tuple[int, int], SlotRange] = {(0, states.batch): self.whole}

    def covering(self, slots: Collection[int]) -> SlotRange:
        """The smallest range that holds ``slots`` and that the backend can run."""
        if self._narrow is None or not slots:
            return self.whole
        first, count = min(slots), max(slots) - min(slots) + 1
        made = self._made.get((first, count))
        if made is None:
            states = self._narrow(self.whole.states, first=first, count=count)
            made = self._made[first, count] = SlotRange(first, states)
        return made
