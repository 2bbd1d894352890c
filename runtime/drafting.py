"""The head's part of a decode loop: when it catches up, and how many tokens it drafts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from selfdraft.runtime.adaptive.policy import BatchPolicy, StepPlan
from selfdraft.runtime.backend import Backend
from selfdraft.runtime.draft import MtpDrafter
from selfdraft.runtime.drawn_drafts import DrawnDrafts
from selfdraft.runtime.kept_hidden import MOST_ROWS, KeptHidden
from selfdraft.runtime.prefill import chunk_rows_at
from selfdraft.runtime.run import Run
from selfdraft.runtime.slot_range import SlotRange, SlotRanges, TapRows
from selfdraft.runtime.slots import SlotTable
from selfdraft.runtime.verify import Agrees


class Drafting:
    """Drafts for the slots of one loop, as many as its policy asks for.

    In a step without drafts the head need not run: the target's hidden states are kept on the host,
    and the head takes in all of them before it drafts again. Its cache is then what it would be had it
    kept up, so drafts do not suffer from a rest; tokens never depend on any of this. Rows wait there too
    where requests join or leave meanwhile, since the next pass then has other slots than the last one.
    """

    def __init__(
        self,
        backend: Backend,
        slots: SlotTable,
        ranges: SlotRanges,
        policy: BatchPolicy,
        agrees: Agrees,
    ) -> None:
        self.head = MtpDrafter(backend, slots)
        self._backend, self._slots, self._ranges = backend, slots, ranges
        self._policy = policy
        self._agrees = agrees
        self._kept = KeptHidden(slots)
        self._newest: TapRows | None = None
        self._of_prompt = False
        """Whether some rows that wait are a prompt's: they attend in another way than a step's, so that
        the head must take them in before the target goes on."""
        self._given_up: set[int] = set()
        """Slots whose head does not keep up; it has a gap there until another request begins."""
        self._compared: dict[int, int] = {}
        self._plan = StepPlan(policy.most, True)
        self._width = slots.batch
        self._drawn = False

    @property
    def drafts(self) -> int:
        """Drafts of the step at work, at most."""
        return self._plan.drafts

    def take(self, rows: TapRows, *, prompt: bool = False) -> None:
        """The target ran: its ``rows``, of prompts or of a decode step."""
        self._newest = rows
        self._of_prompt = prompt

    def begin(self, slot: int) -> None:
        """A request begins in ``slot``, whose newest rows and record are another one's."""
        self.hold()
        self._kept.drop(slot)
        self._given_up.discard(slot)
        self._policy.begin(slot)

    def hold(self) -> None:
        """The target is about to run for others: newest rows must not be left in its buffers."""
        newest, self._newest = self._newest, None
        if newest is None or not self._followed():
            return
        if self._of_prompt:
            self.head.catch_up(newest, [s for s in self._followed() if s in newest.span.slots])
            self._of_prompt = False
        else:
            hidden = self._backend.to_host(newest.hidden)
            self._kept.add(hidden, newest.span, without=self._given_up)

    def joined(self, slot: int, rows: TapRows) -> None:
        """The prompt of ``slot`` is computed, its ``rows`` newest; the first token is drawn.

        The head takes in all but the last row, which waits, so that its next pass drafts from there;
        while it rests, that one too.
        """
        if not self._plan.drafts:
            self.head.catch_up(rows, [slot])
            return
        pending = self._slots.cached[slot] - self._slots.drafter_cached[slot]
        last = self._backend.to_host(rows.hidden)[slot - rows.span.first, pending - 1].copy()
        if pending > 1:
            self.head.catch_up(rows, [slot], leave=1)
        self._kept.add_row(slot, last)
        self._of_prompt = True

    def settle(self) -> None:
        """Let the head see what unfinished slots have done."""
        if self._behind(slot for slot, live in enumerate(self._slots.live) if live):
            self.head.catch_up(*self._pending())
        self._kept.clear()
        self._newest, self._of_prompt = None, False

    def propose(self, runs: Mapping[int, Run], span: SlotRange) -> dict[int, list[int]]:
        """The drafts of each slot, none or more, with tokens that must follow in their place."""
        self._compared = {}
        choosers = {
            slot: run.sampler.drawn_drafts(len(self._slots.tokens[slot]))
            for slot, run in runs.items()
            if run.verification == "rejection"
        }
        self._drawn = bool(choosers)
        self._width = span.width
        self._plan = self._next_plan(runs)
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
                self._policy.note_chain(slot, outcome.accepted, rejected=outcome.rejected)
            elif slot in self._compared:
                agreed = self._agrees(self._compared[slot], outcome.first, outcome.position)
                self._policy.note_chain(slot, int(agreed), rejected=not agreed)
        self._policy.note_step(self._plan.drafts, seconds)

    def _next_plan(self, runs: Mapping[int, Run]) -> StepPlan:
        # Where drafts are drawn, their number is part of what a seed repeats: it must not follow clocks.
        if self._drawn:
            return StepPlan(self._policy.when_drawn, True)
        plan = self._policy.plan(tuple(runs), width=self._width)
        assert plan.drafts <= self._policy.most
        for slot in set(plan.given_up) - self._given_up:
            self._given_up.add(slot)
            self._kept.drop(slot)
        return plan

    def _drafts(
        self, runs: Mapping[int, Run], choosers: Mapping[int, DrawnDrafts]
    ) -> dict[int, list[int]]:
        plan, behind = self._plan, self._behind(runs)
        nothing: dict[int, list[int]] = {slot: [] for slot in runs}
        if not behind:
            # Without new rows it has nothing to start from: it has caught up meanwhile, or given up.
            self._newest = None
            return nothing
        depths = {slot: min(plan.depth_of(slot), runs[slot].tokens_left - 1) for slot in behind}
        if any(depths.values()):
            rows, _ = self._pending()
            return nothing | self.head.propose(rows, depths, choosers)
        last = all(runs[slot].tokens_left <= 1 for slot in behind)
        if plan.drafts and last and not self._of_prompt:
            pass  # nothing is left to draft for
        elif self._of_prompt or plan.resync or self._is_full():
            self._compare(runs)
        else:
            self.hold()
        return nothing

    def _compare(self, runs: Mapping[int, Run]) -> None:
        """Catch up; the draft that comes with it is held against the token that will be drawn."""
        behind = self._behind(runs)
        if not behind:
            return
        rows, slots = self._pending()
        output = self.head.catch_up(rows, slots)
        ids = self._backend.to_host(output.draft_ids)
        self._compared = {slot: int(ids[slot - rows.span.first, 0]) for slot in behind}

    def _pending(self) -> tuple[TapRows, list[int]]:
        """Every hidden state that the head has not seen, and the slots they belong to."""
        slots = self._behind(slot for slot, live in enumerate(self._slots.live) if live)
        newest = self._newest
        if newest is not None and not self._kept.count and newest.span.holds(slots):
            rows, self._newest = newest, None
        else:
            self.hold()
            rows = self._kept.take(self._ranges.covering(slots))
        self._of_prompt = False
        return rows, slots

    def _followed(self) -> list[int]:
        """Slots at work that the head keeps up with."""
        live = self._slots.live
        return [slot for slot in range(len(live)) if live[slot] and slot not in self._given_up]

    def _behind(self, slots: Iterable[int]) -> list[int]:
        """Those with rows that the head has not seen."""
        table = self._slots
        return [
            slot
            for slot in slots
            if table.cached[slot] > table.drafter_cached[slot] and slot not in self._given_up
        ]

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
