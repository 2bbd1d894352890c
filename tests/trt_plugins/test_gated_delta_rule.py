"""``GatedDeltaRule``: bodies agree, rows have the same bits alone and together, states can be taken back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.delta_op import OnnxRule, Slots, random_rows, rule_model, run_oracle, run_torch
from support.numerics import FP64_AGAINST_FP32, assert_close

from selfdraft.errors import ConfigError
from selfdraft.recurrent import DELTA_BLOCK, LOG_ROWS, MAX_ROLLBACK_ROWS, state_length
from selfdraft.trt_plugins.gated_delta_rule.contract import STATES, GatedDeltaRule

pytest.importorskip("onnxruntime")

OP = GatedDeltaRule(num_key_heads=2, num_value_heads=6, key_dim=12, value_dim=8, taps=4)
OPS = {
    "groups of 3": OP,
    "groups of 3, rows in fp16": replace(OP, row_dtype="fp16"),
    "one head each": GatedDeltaRule(
        num_key_heads=3, num_value_heads=3, key_dim=5, value_dim=7, taps=2
    ),
}


def weight_of(op: GatedDeltaRule, rng: np.random.Generator) -> Any:
    return (rng.standard_normal((op.channels, op.taps)) * op.taps**-0.5).astype(np.float32)


def plain_rule(op: GatedDeltaRule, rows: Any, weight: Any) -> tuple[Any, Any]:
    """Every row of one slot from the formula: no log, no blocks. ``y [T, Hv, dv]``, state."""
    x = rows["x"][0].astype(np.float64)
    padded = np.concatenate([np.zeros((op.taps - 1, op.channels)), x])
    state = np.zeros((op.num_value_heads, op.key_dim, op.value_dim))
    y = np.empty((len(x), op.num_value_heads, op.value_dim))
    for t in range(len(x)):
        mixed = np.sum(padded[t : t + op.taps].T * weight, axis=1)
        mixed = mixed / (1 + np.exp(-mixed))
        q, k, v = np.split(mixed, [op.key_size, 2 * op.key_size])
        for head in range(op.num_value_heads):
            own = slice(head // op.group * op.key_dim, (head // op.group + 1) * op.key_dim)
            key = k[own] / np.sqrt(k[own] @ k[own] + 1e-6)
            query = q[own] / np.sqrt(q[own] @ q[own] + 1e-6) / np.sqrt(op.key_dim)
            value = v[head * op.value_dim : (head + 1) * op.value_dim]
            fallen = state[head] * np.exp(float(rows["log_decay"][0, t, head]))
            delta = (value - key @ fallen) * rows["beta"][0, t, head]
            state[head] = fallen + np.outer(key, delta)
            y[t, head] = query @ state[head]
    return y, state


@pytest.mark.parametrize("name", OPS)
def test_oracle_is_the_formula(name) -> None:
    op, rng = OPS[name], np.random.default_rng(3)
    rows, weight = random_rows(op, rng, 1, 24), weight_of(op, rng)
    slots = Slots(op, run_oracle, batch=1, fp32_as=np.float64)
    y = slots.step(rows, weight, np.zeros(1, np.int64), np.full(1, 24))
    expected, _ = plain_rule(op, rows, weight)
    assert_close(y[0], expected.reshape(24, -1), relative=1e-12)
    done = state_length(0, 24)
    _, state = plain_rule(op, {key: rows[key][:, :done] for key in rows}, weight)
    assert_close(slots.states["recurrent"][0], state, relative=1e-12)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("batch", [1, 3, 4])
def test_bodies_agree_over_steps_that_are_taken_back(name, batch) -> None:
    op, rng = OPS[name], np.random.default_rng(batch)
    weight = weight_of(op, rng)
    bodies = {
        "onnx": Slots(op, OnnxRule(op), batch=batch, fp32_as=np.float32),
        "check": Slots(op, OnnxRule(op, checks=True), batch=batch, fp32_as=np.float32),
        "torch": Slots(op, run_torch, batch=batch, fp32_as=np.float32),
    }
    oracle = Slots(op, run_oracle, batch=batch, fp32_as=np.float64)
    past = np.zeros(batch, dtype=np.int64)
    for _ in range(25):
        rows = int(rng.choice([1, 2, 3, 5, MAX_ROLLBACK_ROWS, 30]))
        counts = rng.integers(0, rows + 1, batch)
        given = random_rows(op, rng, batch, rows)
        expected = oracle.step(given, weight, past, counts)
        for body, slots in bodies.items():
            y = slots.step(given, weight, past, counts)
            assert np.isfinite(y).all()
            for slot in np.flatnonzero(counts):
                real = slice(int(counts[slot]))
                assert_close(
                    y[slot, real], expected[slot, real], relative=FP64_AGAINST_FP32, name=body
                )
            for state in ("recurrent", "conv_rows", "gate_rows"):
                logged = past + counts - oracle.state_len
                for slot in np.flatnonzero(counts):
                    used = int(logged[slot]) + (op.taps - 1 if state == "conv_rows" else 0)
                    part = slice(None if state == "recurrent" else used)
                    assert_close(
                        slots.states[state][slot, part],
                        oracle.states[state][slot, part],
                        relative=FP64_AGAINST_FP32,
                        name=f"{body} {state}",
                    )
        back = np.maximum(past * (counts > 0), oracle.state_len)
        past = np.where(counts > 0, rng.integers(back, past + counts + 1), past)


@pytest.mark.parametrize("fall", [0.0, -300.0, -1e4, -np.inf])
@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_row_that_forgets_all_costs_the_rows_behind_it_no_digits(fall, strength) -> None:
    """Rows of one key, too: nothing of the state is left but what the last row wrote."""
    rng = np.random.default_rng(17)
    weight = weight_of(OP, rng)
    bodies = {
        "onnx": Slots(OP, OnnxRule(OP), batch=2, fp32_as=np.float32),
        "check": Slots(OP, OnnxRule(OP, checks=True), batch=2, fp32_as=np.float32),
        "torch": Slots(OP, run_torch, batch=2, fp32_as=np.float32),
    }
    oracle = Slots(OP, run_oracle, batch=2, fp32_as=np.float64)
    past = np.zeros(2, dtype=np.int64)
    for rows in (21, 3, 9, 30):
        given, counts = random_rows(OP, rng, 2, rows), np.array([rows, rows])
        forgets = rng.random(given["log_decay"].shape) < 0.3
        given["log_decay"][forgets], given["beta"][forgets] = fall, strength
        given["x"][1] = given["x"][1, :1]
        expected = oracle.step(given, weight, past, counts)
        for body, slots in bodies.items():
            y = slots.step(given, weight, past, counts)
            assert_close(y, expected, relative=FP64_AGAINST_FP32, name=body)
            found, wanted = slots.states["recurrent"], oracle.states["recurrent"]
            assert_close(found, wanted, relative=FP64_AGAINST_FP32, name=f"{body} recurrent")
        past += counts - 1


@pytest.mark.parametrize("name", OPS)
def test_body_of_the_check_variant_has_no_branch_and_no_shape_that_follows_lengths(name) -> None:
    """NVIDIA's builder takes no ``If`` here, and lengths that decide shapes would wait for the host."""
    function = rule_model(OPS[name], checks=True).functions[0]
    assert not {"If", "NonZero"} & {node.op_type for node in function.node}
    assert not sizes_from_lengths(function)
    assert sizes_from_lengths(rule_model(OPS[name]).functions[0]), "as the CPU's body does"


def sizes_from_lengths(function: Any) -> set[str]:
    """Values that decide shapes or trips and follow from the values of the lengths."""
    known = {"past_len", "row_count", "replay_rows"}
    sizes: set[str] = set()
    for node in function.node:
        if known & set(node.input) and node.op_type != "Shape":
            known |= set(node.output)
        if node.op_type in ("Reshape", "Expand", "Tile", "Slice"):
            sizes |= set(node.input[1:])
        elif node.op_type in ("Range", "Loop"):
            sizes |= set(node.input if node.op_type == "Range" else node.input[:1])
    return sizes & known


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "sequences", [pytest.param(6, id="quick"), pytest.param(200, id="all", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("drafts", [1, 2, 3, 4])
def test_state_after_accepts_and_rejects_is_the_state_from_scratch(
    batch, sequences, drafts
) -> None:
    """Bit for bit, on ONNX Runtime: rejected rows leave no trace, and a step's size changes nothing."""
    body, rng = OnnxRule(OP), np.random.default_rng([batch, drafts])
    weight = weight_of(OP, rng)
    for _ in range(sequences):
        lengths = rng.integers(12, 60, batch)
        final = random_rows(OP, rng, batch, int(lengths.max()) + 1)
        slots = Slots(OP, body, batch=batch, fp32_as=np.float32)
        y = np.zeros((*final["x"].shape[:2], OP.value_size), dtype=np.float32)
        past = np.zeros(batch, dtype=np.int64)
        while (past < lengths).any():
            counts = np.where(past < lengths, rng.integers(1, drafts + 2, batch), 0)
            kept = np.minimum([rng.integers(1, max(c, 1) + 1) for c in counts], lengths - past)
            given = random_rows(OP, rng, batch, drafts + 1)
            for slot, count in enumerate(kept):
                for key, array in given.items():
                    array[slot, :count] = final[key][slot, past[slot] : past[slot] + count]
            out = slots.step(given, weight, past, counts)
            for slot, count in enumerate(np.where(counts > 0, kept, 0)):
                y[slot, past[slot] : past[slot] + count] = out[slot, :count]
            past += np.where(counts > 0, kept, 0)
        whole = Slots(OP, body, batch=batch, fp32_as=np.float32)
        expected = whole.step(final, weight, past * 0, lengths)
        last = {
            key: np.stack([array[slot, lengths[slot]][None] for slot in range(batch)])
            for key, array in final.items()
        }
        one = np.ones(batch, dtype=np.int64)
        ends = [s.step(last, weight, lengths, one) for s in (slots, whole)]
        np.testing.assert_array_equal(*ends)
        np.testing.assert_array_equal(slots.state_len, whole.state_len)
        for name in STATES:
            for slot in range(batch):
                used = int(lengths[slot]) + 1 - int(whole.state_len[slot])
                used += OP.taps - 1 if name == "conv_rows" else 0
                part = slice(None if name == "recurrent" else used)
                np.testing.assert_array_equal(
                    slots.states[name][slot, part], whole.states[name][slot, part]
                )
        for slot in range(batch):
            real = slice(int(lengths[slot]))
            np.testing.assert_array_equal(y[slot, real], expected[slot, real])


def test_fp16_rows_are_logged_as_they_came_and_nothing_else_is_rounded() -> None:
    """Bit for bit what the fp32 op gives for the same numbers: widening and narrowing are exact."""
    half, rng = OPS["groups of 3, rows in fp16"], np.random.default_rng(12)
    weight = weight_of(OP, rng)
    slots = {
        op.row_dtype: Slots(op, OnnxRule(op), batch=2, fp32_as=np.float32) for op in (half, OP)
    }
    past = np.zeros(2, dtype=np.int64)
    for rows in (21, 3, 9, 1):
        given, counts = random_rows(half, rng, 2, rows), np.array([rows, rows // 2 + 1])
        wide = given | {"x": given["x"].astype(np.float32)}
        y = slots["fp16"].step(given, weight, past, counts)
        assert y.dtype == np.float32
        np.testing.assert_array_equal(y, slots["fp32"].step(wide, weight, past, counts))
        for name in STATES:
            stored = slots["fp16"].states[name]
            assert stored.dtype == (np.float16 if name == "conv_rows" else np.float32)
            np.testing.assert_array_equal(stored, slots["fp32"].states[name])
        past = past + counts


def test_slots_that_idle_keep_their_states() -> None:
    rng = np.random.default_rng(5)
    weight, body = weight_of(OP, rng), OnnxRule(OP)
    slots = Slots(OP, body, batch=2, fp32_as=np.float32)
    slots.step(random_rows(OP, rng, 2, 20), weight, np.zeros(2, np.int64), np.full(2, 20))
    before = {name: array.copy() for name, array in slots.states.items()}
    slots.step(random_rows(OP, rng, 2, 9), weight, np.full(2, 20), np.array([0, 9]))
    for name, array in slots.states.items():
        used = 20 - int(slots.state_len[0]) + (OP.taps - 1 if name == "conv_rows" else 0)
        part = slice(None if name == "recurrent" else used)
        np.testing.assert_array_equal(array[0, part], before[name][0, part])
        assert (array[1] != before[name][1]).any()


def test_new_sequence_in_a_used_slot_starts_from_zero() -> None:
    rng = np.random.default_rng(6)
    weight, body = weight_of(OP, rng), OnnxRule(OP)
    slots = Slots(OP, body, batch=1, fp32_as=np.float32)
    slots.step(random_rows(OP, rng, 1, 40), weight, np.zeros(1, np.int64), np.full(1, 40))
    slots.states["recurrent"][:] = np.nan  # an overflow of the sequence before must not stay
    fresh = Slots(OP, body, batch=1, fp32_as=np.float32)
    for rows in (3, 9, 30):
        given, past = random_rows(OP, rng, 1, rows), np.zeros(1, dtype=np.int64)
        results = [s.step(given, weight, past, np.full(1, rows)) for s in (slots, fresh)]
        np.testing.assert_array_equal(*results)
        for name in STATES:
            np.testing.assert_array_equal(slots.states[name], fresh.states[name])
        slots.states["recurrent"][:] = np.nan


def test_state_lies_at_a_block_from_which_the_log_reaches_the_end() -> None:
    for past in range(40):
        for rows in range(1, 90):
            length = state_length(past, rows)
            assert length % DELTA_BLOCK == 0
            assert past + rows - length <= LOG_ROWS
            if rows <= MAX_ROLLBACK_ROWS:
                assert length <= past


def test_oracle_refuses_a_length_that_the_states_do_not_reach() -> None:
    rng = np.random.default_rng(8)
    slots = Slots(OP, run_oracle, batch=1, fp32_as=np.float64)
    weight = weight_of(OP, rng)
    slots.step(random_rows(OP, rng, 1, 60), weight, np.zeros(1, np.int64), np.full(1, 60))
    with pytest.raises(ValueError, match="length 20"):
        slots.step(random_rows(OP, rng, 1, 1), weight, np.full(1, 20), np.ones(1, np.int64))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_value_heads": 5}, "num_value_heads is 5"),
        ({"taps": 1}, "taps is 1"),
        ({"row_dtype": "bf16"}, "row_dtype is 'bf16'"),
    ],
)
def test_attributes_that_no_body_implements_are_refused(change, named) -> None:
    with pytest.raises(ConfigError, match=named):
        GatedDeltaRule(**{**OP.onnx_attributes(), **change})
