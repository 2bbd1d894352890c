"""A backend over states that are filled already, sparse or dense, that notes what its steps read."""

from __future__ import annotations

from selfdraft.cli.timed_backend import TimedBackend
from selfdraft.runtime.backend import (
    BackboneOutput,
    Backend,
    DeviceTensor,
    IntArray,
    MtpOutput,
    States,
    Step,
)


class FilledBackend(TimedBackend):
    """Every loop on it works on ``states``: a cache of 128K tokens is held once for all of them.

    So a loop must begin each turn from its prompt; the rows behind it are the last loop's.
    ``attend_all`` makes every row dense, whatever the bundle's selector.
    """

    def __init__(self, inner: Backend, states: States, *, attend_all: bool) -> None:
        super().__init__(inner)
        self._states = states
        self._attend_all = attend_all
        self.blocks_read: list[tuple[int, ...]] = []
        """Of each backbone pass: blocks that each sparse layer read."""

    def allocate(self, *, batch: int, capacity: int) -> States:
        """The states given, which must be of that size."""
        assert (batch, capacity) == (self._states.batch, self._states.capacity), capacity
        return self._states

    def run_backbone(self, states: States, step: Step, input_ids: IntArray) -> BackboneOutput:
        """The pass of the backend inside, and a note of its blocks."""
        output = super().run_backbone(states, self._step(step), input_ids)
        if output.blocks_read is not None:
            self.blocks_read.append(tuple(output.blocks_read.tolist()))
        return output

    def run_mtp(
        self,
        states: States,
        step: Step,
        input_ids: IntArray | DeviceTensor,
        hidden: DeviceTensor,
    ) -> MtpOutput:
        """The pass of the backend inside."""
        return super().run_mtp(states, self._step(step), input_ids, hidden)

    def _step(self, step: Step) -> Step:
        if self._attend_all:
            step.attend_all[:] = 1
        return step
