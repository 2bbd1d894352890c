"""The head's part of a decode loop: when it catches up, and how many tokens it drafts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from selfdraft.runtime.adaptive.policy import DraftPolicy, StepPlan
from selfdraft.runtime.backend import Backend, DeviceTensor, FloatArray, States
from selfdraft.runtime.draft import MtpDrafter
from selfdraft.runtime.drawn_drafts import DrawnDrafts
from selfdraft.runtime.kept_hidden import MOST_ROWS, KeptHidden
from selfdraft.runtime.prefill import chunk_rows_at
from selfdraft.runtime.run import Run
from selfdraft.runtime.slots import SlotTable
from selfdraft.runtime.verify import Agrees


class _Newest(NamedTuple):
    """Hidden states of the target's last pass."""

    hidden: DeviceTensor | FloatArray
    num_rows: int
    prompt: bool


class Drafting:
    """Drafts for the slots of one loop, as many as its policy asks for.

    In a step without drafts the head need not run: the target's hidden states are kept on the host,
    and the head takes in all of them before it drafts again. Its cache is then what it would be had it
    kept up, so drafts do not suffer from a rest; tokens never depend on any of this.
    """

    def __init__(
        self,
        backend: Backend,
        states: States,
        slots: SlotTable,
        policy: DraftPolicy,
        agrees: Agrees,
    ) -> None:
        self.head = MtpDrafter(backend, states, slots)
        self._backend, self._slots = backend, slots
        self._policy = policy
        self._agrees = agrees
        self._kept = KeptHidden(slots)
        self._newest: _Newest | None = None
        self._compared: dict[int, int] = {}
        self._plan = StepPlan(policy.most, True)
        self._drawn = False

    @property
    def drafts(self) -> int:
        """Drafts of the step at work, at most."""
        return self._plan.drafts

    def take(self, hidden: DeviceTensor, num_rows: int, *, prompt: bool = False) -> None:
        """The target ran: ``hidden [B, num_rows, H]``, of prompts or of a decode step."""
        self._newest = _Newest(hidden, num_rows, prompt)

    def settle(self) -> None:
        """Before a prompt is computed: let the head see what unfinished slots have done."""
        if any(self._slots.live):
            self.head.catch_up(*self._pending())
        self._kept.clear()

    def propose(self, runs: Mapping[int, Run]) -> list[list[int]]:
        """The drafts of each slot, none or more, with tokens that must follow in their place."""
        self._compared = {}
        choosers = {
            slot: run.sampler.drawn_drafts(len(self._slots.tokens[slot]))
            for slot, run in runs.items()
            if run.verification == "rejection"
        }
        self._drawn = bool(choosers)
        self._plan = self._next_plan()
        drafts = self._drafts(runs, choosers)
        for slot, run in runs.items():
            laws = choosers[slot].laws if slot in choosers else ()
            drafts[slot] = run.plan(drafts[slot], laws, depth=self._plan.drafts)
        return drafts

    def note(self, runs: Mapping[int, Run], seconds: float) -> None:
        """The step is over and took so long; tell the policy how it went."""
        if self._drawn:
            return
        for slot, run in runs.items():
            outcome = run.outcome
            if outcome.drafted:
                self._policy.note_chain(outcome.accepted, rejected=outcome.rejected)
            elif slot in self._compared:
                agreed = self._agrees(self._compared[slot], outcome.first, outcome.position)
                self._policy.note_chain(int(agreed), rejected=not agreed)
        self._policy.note_step(self._plan.drafts, seconds)

    def _next_plan(self) -> StepPlan:
        # Where drafts are drawn, their number is part of what a seed repeats: it must not follow clocks.
        plan = StepPlan(self._policy.when_drawn, True) if self._drawn else self._policy.plan()
        assert plan.drafts <= self._policy.most
        return plan

    def _drafts(
        self, runs: Mapping[int, Run], choosers: Mapping[int, DrawnDrafts]
    ) -> list[list[int]]:
        slots, newest = self._slots, self._newest
        assert newest is not None
        depths = [0] * slots.batch
        for slot, run in runs.items():
            # Without new rows (a request joined meanwhile) the head has nothing to start from.
            if slots.cached[slot] > slots.drafter_cached[slot]:
                depths[slot] = min(self._plan.drafts, run.tokens_left - 1)
        if any(depths):
            return self.head.propose(*self._pending(), depths, choosers)
        if self._plan.drafts:
            pass  # the last token of every slot that has rows: nothing is left to draft for
        elif newest.prompt or self._plan.resync or self._is_full():
            self._compare(runs)
        else:
            self._kept.add(self._backend.to_host(newest.hidden))
        return [[] for _ in depths]

    def _compare(self, runs: Mapping[int, Run]) -> None:
        """Catch up; the draft that comes with it is held against the token that will be drawn."""
        behind = [
            slot for slot in runs if self._slots.cached[slot] > self._slots.drafter_cached[slot]
        ]
        if not behind:
            return
        output = self.head.catch_up(*self._pending())
        ids = self._backend.to_host(output.draft_ids)
        self._compared = {slot: int(ids[slot, 0]) for slot in behind}

    def _pending(self) -> tuple[DeviceTensor | FloatArray, int]:
        """Every hidden state that the head has not seen, and their number of rows."""
        newest = self._newest
        assert newest is not None
        if not self._kept.count:
            return newest.hidden, newest.num_rows
        self._kept.add(self._backend.to_host(newest.hidden))
        return self._kept.take()

    def _is_full(self) -> bool:
        """So many rows wait that one pass could not take more of them."""
        slots = self._slots
        fitting = chunk_rows_at(
            max(slots.cached) + 1,
            most=MOST_ROWS,
            batch=slots.batch,
            num_heads=self._backend.manifest.model.num_heads,
        )
        return self._kept.count + 1 >= fitting
