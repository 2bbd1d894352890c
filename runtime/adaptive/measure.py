"""What steps cost on a backend, measured at load on caches of their own."""

from __future__ import annotations

import time
from collections.abc import Callable

from selfdraft.baseline import Baseline
from selfdraft.manifest import capacity_for
from selfdraft.recurrent import STATE_LEN
from selfdraft.runtime.adaptive.costs import StepCosts
from selfdraft.runtime.adaptive.joint import JointCosts, JointDrafts
from selfdraft.runtime.adaptive.policy import AdaptiveDrafts
from selfdraft.runtime.backend import Backend, States
from selfdraft.runtime.kept_hidden import MOST_ROWS
from selfdraft.runtime.slot_range import NarrowBackend
from selfdraft.runtime.slots import StepArrays

MOST_DRAFTS = 4
"""Drafts of a step at most where nobody says: one head that is fed with its own output gets worse."""
MEASURED_AT = 32
"""Cached tokens of the measurement; what length adds is learnt from the steps themselves."""
REPEATS = 3
"""Timed passes of each kind; the quickest counts."""
ENOUGH_S = 1.0
"""Large models are slow and steady: fewer passes are timed once so many seconds are spent."""

Clock = Callable[[], float]


def measure_costs(
    backend: Backend,
    *,
    batch: int,
    most: int,
    least_rows: int = 1,
    clock: Clock = time.perf_counter,
) -> StepCosts:
    """Seconds of a step of ``batch`` slots with 0 to ``most`` drafts.

    A step with K drafts is the backbone over K + 1 rows (``least_rows`` at least), the head's catch-up over
    as many, and K - 1 further links. Nothing that a loop holds is touched.
    """
    states = backend.allocate(batch=batch, capacity=capacity_for(MEASURED_AT))
    _reach(backend, states)
    rows = [max(drafts + 1, least_rows) for drafts in range(most + 1)]
    passes = {count: _Passes(backend, states, count, clock) for count in dict.fromkeys([1, *rows])}
    started = clock()
    for turn in range(REPEATS + 1):
        for timed in passes.values():
            timed.run(counted=turn > 0)
        if turn and clock() - started > ENOUGH_S:
            break
    link = passes[1].head_s
    drafting = [
        passes[count].backbone_s + passes[count].head_s + behind * link
        for behind, count in enumerate(rows[1:])
    ]
    return StepCosts([passes[rows[0]].backbone_s, *drafting])


def measure_keep_up(backend: Backend, *, batch: int, clock: Clock = time.perf_counter) -> float:
    """Seconds a step that a resting head takes to keep up with ``batch`` slots: a row of each a step.

    It catches up with so many rows at once as may wait.
    """
    states = backend.allocate(batch=batch, capacity=capacity_for(MEASURED_AT + MOST_ROWS))
    passes = _Passes(backend, states, MOST_ROWS, clock, num_logit_rows=1)
    for turn in range(REPEATS):
        _reach(backend, states)  # recurrent states move on with a step of so many rows
        passes.run(counted=turn > 0)
    return passes.head_s / MOST_ROWS


def adaptive_drafts(
    backend: Backend, *, batch: int = 1, most: int = MOST_DRAFTS, least_rows: int = 1
) -> AdaptiveDrafts | None:
    """A policy for a loop on ``backend``, from costs measured now and the bundle's baseline.

    None where there is no head, or where drafts could not pay even if every one were accepted.
    """
    if not backend.manifest.has_mtp:
        return None
    costs = measure_costs(backend, batch=batch, most=most, least_rows=least_rows)
    return AdaptiveDrafts(costs, prior=_prior(backend.manifest.baseline)) if costs.pays else None


def joint_drafts(
    backend: Backend, *, batch: int, most: int = MOST_DRAFTS, least_rows: int = 1
) -> JointDrafts | None:
    """A policy for a loop of ``batch`` slots, each with a number of its own; else as ``adaptive_drafts``.

    Measures steps over 1, 2, 4, … slots where the backend runs a part of them, else over all.
    """
    if not backend.manifest.has_mtp:
        return None
    widths = [batch]
    if isinstance(backend, NarrowBackend):
        widths = sorted({batch, *(1 << power for power in range(batch.bit_length() - 1))})
    measured = {
        width: measure_costs(backend, batch=width, most=most, least_rows=least_rows).seconds
        for width in widths
    }
    keep_up = {width: measure_keep_up(backend, batch=width) for width in widths}
    costs = JointCosts(measured, keep_up=keep_up)
    return JointDrafts(costs, prior=_prior(backend.manifest.baseline)) if costs.pays else None


def _prior(baseline: Baseline | None) -> list[float]:
    """Rates of each position given those before it; none without a baseline."""
    if baseline is None:
        return []
    counts = baseline.counts()
    reached = (counts.drafted[:1] + counts.accepted)[: len(counts.accepted)]
    return [a / r for a, r in zip(counts.accepted, reached, strict=True) if r]


def _reach(backend: Backend, states: States) -> None:
    """Let recurrent states lie at the length that is measured at: none of their rows is in the log."""
    if backend.manifest.model.delta is None:
        return
    lengths = {"backbone": MEASURED_AT, "mtp": MEASURED_AT}
    for slot in range(states.batch):
        arrays = backend.export_states(states, slot=slot, lengths=lengths)
        arrays[STATE_LEN][...] = MEASURED_AT
        backend.import_states(states, slot=slot, lengths=lengths, arrays=arrays)


class _Passes:
    """Both graphs over so many rows of each slot; ``num_logit_rows`` of the target's (None: all)."""

    def __init__(
        self,
        backend: Backend,
        states: States,
        rows: int,
        clock: Clock,
        *,
        num_logit_rows: int | None = None,
    ) -> None:
        self._backend, self._states, self._clock = backend, states, clock
        batch = states.batch
        asked = num_logit_rows or rows
        self._target = StepArrays(batch, num_rows=rows, num_logit_rows=asked)
        self._target.step.row_index[:] = range(rows - asked, rows)
        self._head = StepArrays(batch, num_rows=rows, num_logit_rows=1)
        self._head.ask_last_rows([rows] * batch)
        for arrays in (self._target, self._head):
            arrays.fill(
                past_len=[MEASURED_AT] * batch, row_count=[rows] * batch, attend_all=[0] * batch
            )
        self.backbone_s = self.head_s = float("inf")

    def run(self, *, counted: bool) -> None:
        """One pass of each graph; passes that are not counted set up buffers."""
        backend, states = self._backend, self._states
        start = self._clock()
        output = backend.run_backbone(states, self._target.step, self._target.input_ids)
        between = self._clock()
        drafts = backend.run_mtp(states, self._head.step, self._head.input_ids, output.hidden)
        backend.to_host(drafts.draft_ids)
        end = self._clock()
        if counted:
            self.backbone_s = min(self.backbone_s, between - start)
            self.head_s = min(self.head_s, end - between)
