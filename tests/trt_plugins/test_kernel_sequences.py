"""Histories of accepted and rejected drafts on the kernels, and the bytes that a step reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.kernel_cases import make_kernel_op
from support.kernel_checks import bits
from support.kernel_step import Edits, KernelResult, KernelStep, random_step, run_kernels

from selfdraft.trt_plugins.cached_attention.contract import CachedAttention

SCORING = ("mean_std", "min_max", "infllm_v2")
PROMPT = 380
TOKENS = 70
DRAFT_ROWS = 9
Tokens = dict[str, NDArray[np.float16]]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A slot's true tokens by position, and the states behind its prompt."""

    tokens: Tokens
    prompt: KernelStep


def history(op: CachedAttention, *, seed: int) -> History:
    prompt = random_step(op, [PROMPT], rows=1, seed=seed, spare_blocks=4, splits=2)
    states = run_kernels(prompt).states
    rng = np.random.default_rng([seed, 1])
    tokens = {
        name: rng.normal(size=(TOKENS + DRAFT_ROWS, *getattr(prompt, name).shape[2:])).astype(
            np.float16
        )
        for name in ("q", "k", "v")
    }
    return History(tokens=tokens, prompt=replace(prompt, states=states))


def call(
    past: History,
    states: Any,
    *,
    done: int,
    rows: Tokens,
    seed: int,
    edits: Edits = (),
    edited: str = "",
) -> KernelResult:
    """One step of ``rows [n, heads, d]`` behind ``done`` of the history's tokens."""
    count = np.array([len(rows["q"])], dtype=np.int64)
    step = replace(
        past.prompt,
        **{name: rows[name][None].copy() for name in rows},
        states=states,
        past_len=np.array([PROMPT + done], dtype=np.int64),
        row_count=count,
    )
    return run_kernels(step, seed=seed, edits=edits, edited=edited)


def plain(past: History) -> tuple[list[Any], Any]:
    """Output of every token decoded alone, and the states behind the last."""
    states, outputs = past.prompt.states, []
    for done in range(TOKENS):
        one = {name: array[done : done + 1] for name, array in past.tokens.items()}
        result = call(past, states, done=done, rows=one, seed=done)
        states = result.states
        outputs.append(result.y[0, 0])
    return outputs, states


def speculative(
    past: History, *, seed: int, edits: Edits = (), edited: str = ""
) -> tuple[list[Any], Any]:
    """The same with drafts of which a random part is rejected: large, other tokens."""
    rng = np.random.default_rng([seed, 2])
    states, outputs, done = past.prompt.states, [], 0
    while done < TOKENS:
        accepted = min(int(rng.integers(1, DRAFT_ROWS)), TOKENS - done)
        rejected = int(rng.integers(0, DRAFT_ROWS - accepted + 1))
        rows = {}
        for name, array in past.tokens.items():
            drafts = rng.normal(size=(rejected, *array.shape[1:])) * 30
            rows[name] = np.concatenate([array[done : done + accepted], drafts.astype(np.float16)])
        result = call(past, states, done=done, rows=rows, seed=done, edits=edits, edited=edited)
        states = result.states
        outputs += list(result.y[0, :accepted])
        done += accepted
    return outputs, states


def check_history(op: CachedAttention, *, seed: int, edits: Edits = (), edited: str = "") -> None:
    past = history(op, seed=seed)
    expected, plain_states = plain(past)
    found, states = speculative(past, seed=seed, edits=edits, edited=edited)
    for done, (left, right) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_array_equal(bits(left), bits(right), err_msg=f"token {done}")
    length = PROMPT + TOKENS
    for name, array in states.items():
        left, right = array[0], plain_states[name][0]
        if name == "summary":
            complete = length // 64 - (2 if op.selector == "infllm_v2" else 0)
            left, right = left[:, :complete], right[:, :complete]
        else:
            left, right = (
                x.swapaxes(0, 1).reshape(op.num_kv_heads, -1, *x.shape[3:])[:, :length]
                for x in (left, right)
            )
        np.testing.assert_array_equal(bits(left), bits(right), err_msg=name)


@pytest.mark.parametrize(
    ("selector", "kv_dtype"),
    [("mean_std", "int8"), ("min_max", "fp16"), ("infllm_v2", "fp16"), ("window", "int8")],
)
def test_rejected_drafts_leave_output_and_states_of_plain_decoding(
    selector: str, kv_dtype: str
) -> None:
    op = make_kernel_op(
        selector=selector,
        kv_dtype=kv_dtype,
        num_kv_heads=1,
        group=4,
        budget_tokens=64 * 5,
        sliding_window=150 if selector == "window" else 0,
    )
    check_history(op, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", ["fp16", "int8"])
@pytest.mark.parametrize("selector", SCORING)
@pytest.mark.parametrize("seed", range(2, 8))
def test_many_rejected_drafts_leave_output_and_states_of_plain_decoding(
    selector: str, kv_dtype: str, seed: int
) -> None:
    op = make_kernel_op(
        selector=selector, kv_dtype=kv_dtype, num_kv_heads=1, group=1 + seed, budget_tokens=64 * 5
    )
    check_history(op, seed=seed)


def read_bytes(result: KernelResult) -> dict[str, int]:
    """Bytes that the kernels read, by kind, over the whole step."""
    total: dict[str, int] = {}
    for traffic in result.traffic.values():
        for kind, count in traffic.read.items():
            total[kind] = total.get(kind, 0) + count
    return total


@pytest.mark.parametrize("kv_dtype", ["fp16", "int8"])
@pytest.mark.parametrize("length", [4096, 32_768, pytest.param(131_072, marks=pytest.mark.slow)])
def test_bytes_of_a_decode_step_are_those_of_the_formula(length: int, kv_dtype: str) -> None:
    """facts: T tokens of K and V, and one summary of 2 d fp16 for each block of the context."""
    dim, budget = 128, 4096
    op = make_kernel_op(
        selector="mean_std",
        kv_dtype=kv_dtype,
        head_dim=dim,
        num_kv_heads=1,
        group=4,
        budget_tokens=budget,
    )
    step = random_step(op, [length], rows=1, seed=length, splits=4)
    found = read_bytes(run_kernels(step))
    token = 2 * (dim + 2 if kv_dtype == "int8" else 2 * dim)
    scored = 0 if length <= budget else length // 64 * 2 * 2 * dim
    expected = min(length, budget) * token + scored
    counted = found["kv"] + found.get("scale", 0) + found.get("summary", 0)
    assert abs(counted / expected - 1) <= 0.02, (counted, expected, found)


def test_rows_of_one_tile_read_the_union_of_their_blocks_once() -> None:
    op = make_kernel_op(selector="mean_std", num_kv_heads=1, group=4, budget_tokens=64 * 6)
    step = random_step(op, [64 * 20], rows=4, seed=3)
    result = run_kernels(step)
    blocks, _ = result.lists(0, 0)[0]
    assert 6 < len(blocks) < 20
    assert result.traffic["attend"].read["kv"] == len(blocks) * 64 * 2 * 2 * op.head_dim
