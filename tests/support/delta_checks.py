"""What the kernels of ``GatedDeltaRule`` must keep, as checks for the host layer, a GPU and mutants alike."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.delta_kernels import DeltaKernels, half_rows, half_states
from support.delta_op import Rows, Slots, random_rows, run_oracle
from support.numerics import FP64_AGAINST_FP32, assert_close

from selfdraft.recurrent import DELTA_BLOCK, MAX_ROLLBACK_ROWS
from selfdraft.trt_plugins.gated_delta_rule.contract import STATES, GatedDeltaRule
from selfdraft.trt_plugins.gated_delta_rule.launches import SlotStep, bytes_asked_for

ROWS = (1, 2, 3, 5, MAX_ROLLBACK_ROWS, 30)
SPARE = 2
"""Rows of padding behind the longest slot's own."""


def weight_of(op: GatedDeltaRule, rng: np.random.Generator) -> Any:
    return (rng.standard_normal((op.channels, op.taps)) * op.taps**-0.5).astype(np.float32)


def kernel_slots(op: GatedDeltaRule, kernels: DeltaKernels, *, batch: int) -> Slots:
    slots = Slots(op, kernels, batch=batch, fp32_as=np.float32)
    slots.states = half_states(op, batch=batch)
    return slots


def padded_rows(op: GatedDeltaRule, rng: np.random.Generator, counts: Any, rows: int) -> Rows:
    """Rows that fp16 holds, NaN behind each slot's own."""
    given = half_rows(random_rows(op, rng, len(counts), rows))
    for slot, count in enumerate(counts):
        for array in given.values():
            array[slot, count:] = np.nan
    return given


def used_part(slots: Slots, name: str, slot: int, length: int) -> slice:
    """Of a state at ``length``: all of the recurrent one, the log up to the length."""
    logged = length - int(slots.state_len[slot])
    before = slots.op.taps - 1 if name == "conv_rows" else 0
    return slice(None if name == "recurrent" else before + logged)


def check_oracle(
    op: GatedDeltaRule, kernels: DeltaKernels, *, batch: int = 3, steps: int = 16
) -> None:
    """Steps of any size that are taken back, and new sequences in between, agree with fp64 row by row.

    y, the states up to each length, zeros in padding, and the bytes that the kernels ask for.
    """
    rng = np.random.default_rng([batch, op.channels])
    weight = weight_of(op, rng)
    own = kernel_slots(op, kernels, batch=batch)
    oracle = Slots(op, run_oracle, batch=batch, fp32_as=np.float64)
    past = np.zeros(batch, dtype=np.int64)
    for _ in range(steps):
        rows = int(rng.choice(ROWS))
        counts = rng.integers(0, rows + 1, batch)
        given = padded_rows(op, rng, counts, rows + SPARE)
        replay = np.where(past > 0, past - own.state_len, 0)
        y = own.step(given, weight, past, counts)
        step = [
            SlotStep(past_len=int(p), rows=int(c), replay=int(r))
            for p, c, r in zip(past, counts, replay, strict=True)
        ]
        asked = {k: v for k, v in bytes_asked_for(op, step, rows=rows + SPARE).items() if v}
        assert not kernels.counts or dict(kernels.traffic) == asked
        _compare(own, oracle, y, oracle.step(given, weight, past, counts), past, counts)
        back = np.where(counts > 0, np.maximum(past, oracle.state_len), past)
        past = np.where(counts > 0, rng.integers(back, past + counts + 1), past)
        past[rng.random(batch) < 0.1] = 0


def _compare(own: Slots, oracle: Slots, y: Any, expected: Any, past: Any, counts: Any) -> None:
    for slot, count in enumerate(counts.tolist()):
        assert (y[slot, count:] == 0).all(), "padding is not zero"
        if not count:
            continue
        assert_close(y[slot, :count], expected[slot, :count], relative=FP64_AGAINST_FP32, name="y")
        for name in STATES:
            part = used_part(oracle, name, slot, int(past[slot]) + count)
            found, wanted = own.states[name][slot, part], oracle.states[name][slot, part]
            assert_close(found, wanted, relative=FP64_AGAINST_FP32, name=name)


def check_rollback(
    op: GatedDeltaRule,
    kernels: DeltaKernels,
    *,
    batch: int = 2,
    drafts: int = 3,
    sequences: int = 2,
) -> None:
    """After accepts and rejects the states are bit for bit those of one pass over what was kept.

    So are the rows: alone, among drafts, or in a prompt.
    """
    rng = np.random.default_rng([batch, drafts, op.channels])
    weight = weight_of(op, rng)
    for _ in range(sequences):
        lengths = rng.integers(12, 40, batch)
        final = half_rows(random_rows(op, rng, batch, int(lengths.max())))
        slots = kernel_slots(op, kernels, batch=batch)
        y = _with_rejects(slots, final, weight, lengths, drafts=drafts, rng=rng)
        whole = kernel_slots(op, kernels, batch=batch)
        expected = whole.step(final, weight, lengths * 0, lengths)
        # One more row brings both states to the same length.
        last = half_rows(random_rows(op, rng, batch, 1))
        ends = [s.step(last, weight, lengths, np.ones_like(lengths)) for s in (slots, whole)]
        np.testing.assert_array_equal(*ends)
        for slot, length in enumerate(lengths.tolist()):
            np.testing.assert_array_equal(y[slot, :length], expected[slot, :length])
            for name in STATES:
                part = used_part(whole, name, slot, length + 1)
                np.testing.assert_array_equal(
                    slots.states[name][slot, part], whole.states[name][slot, part], err_msg=name
                )


def _with_rejects(
    slots: Slots, final: Rows, weight: Any, lengths: Any, *, drafts: int, rng: np.random.Generator
) -> Any:
    """``y`` of the rows of ``final``, computed in steps of which some rows are taken back."""
    batch = len(lengths)
    y = np.zeros((*final["x"].shape[:2], slots.op.value_size), dtype=np.float32)
    past = np.zeros(batch, dtype=np.int64)
    while (past < lengths).any():
        counts = np.where(past < lengths, rng.integers(1, drafts + 2, batch), 0)
        kept = np.minimum([rng.integers(1, max(c, 1) + 1) for c in counts], lengths - past)
        kept = np.where(counts > 0, kept, 0)
        given = padded_rows(slots.op, rng, counts, drafts + 1)
        for slot, count in enumerate(kept.tolist()):
            for key, array in given.items():
                array[slot, :count] = final[key][slot, past[slot] : past[slot] + count]
        out = slots.step(given, weight, past, counts)
        for slot, count in enumerate(kept.tolist()):
            y[slot, past[slot] : past[slot] + count] = out[slot, :count]
        past += kept
    return y


def check_idle(op: GatedDeltaRule, kernels: DeltaKernels) -> None:
    """A slot without rows keeps every bit of its states."""
    rng = np.random.default_rng(5)
    weight = weight_of(op, rng)
    slots = kernel_slots(op, kernels, batch=2)
    slots.step(
        half_rows(random_rows(op, rng, 2, 20)), weight, np.zeros(2, np.int64), np.full(2, 20)
    )
    before = {name: array.copy() for name, array in slots.states.items()}
    counts = np.array([0, MAX_ROLLBACK_ROWS])
    y = slots.step(half_rows(random_rows(op, rng, 2, 9)), weight, np.full(2, 20), counts)
    assert (y[0] == 0).all()
    for name, array in slots.states.items():
        assert array[0].tobytes() == before[name][0].tobytes(), name
        assert array[1].tobytes() != before[name][1].tobytes(), name


def check_bad_drafts(op: GatedDeltaRule, kernels: DeltaKernels) -> None:
    """A rejected draft of NaN leaves neither the rows before it nor the states behind them spoiled."""
    rng = np.random.default_rng(6)
    weight = weight_of(op, rng)
    past = np.array([DELTA_BLOCK + 3])
    clean, spoiled = (kernel_slots(op, kernels, batch=1) for _ in range(2))
    prompt = half_rows(random_rows(op, rng, 1, int(past[0])))
    rows, after = (half_rows(random_rows(op, rng, 1, n)) for n in (4, 6))
    bad = {name: array.copy() for name, array in rows.items()}
    for array in bad.values():
        array[:, 2:] = np.nan
    ends = []
    for slots, given in ((clean, rows), (spoiled, bad)):
        slots.step(prompt, weight, past * 0, past)
        y = slots.step(given, weight, past, np.array([4]))
        ends.append([y[:, :2], slots.step(after, weight, past + 2, np.array([6]))])
    for found, wanted in zip(ends[1], ends[0], strict=True):
        np.testing.assert_array_equal(found, wanted)


def check_repeats(op: GatedDeltaRule, kernels: DeltaKernels) -> None:
    """Ten random schedules give the same bits."""
    rng = np.random.default_rng(7)
    weight, rows = weight_of(op, rng), half_rows(random_rows(op, rng, 2, 21))
    results = set()
    for _ in range(10):
        slots = kernel_slots(op, kernels, batch=2)
        y = slots.step(rows, weight, np.zeros(2, np.int64), np.array([21, 13]))
        assert np.isfinite(y[0]).all()
        results.add(y.tobytes() + slots.states["recurrent"].tobytes())
    assert len(results) == 1, f"{len(results)} different results"
