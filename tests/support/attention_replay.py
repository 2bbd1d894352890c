"""Random histories of prompts, accepted and rejected drafts, replayed on the attention op.

A slot's true tokens have fixed queries, keys and values by position. A verify call appends some of
them and, behind those, drafts that get rejected: other keys, large enough to spoil a summary.
Whatever the history, the output of each true token must be what plain decoding gives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from support.attention_cases import SELECTORS, make_op
from support.brute_attention import brute_row

from selfdraft.trt_plugins.cached_attention.contract import CachedAttention, Selector
from selfdraft.trt_plugins.cached_attention.int8_kv import dequantise, quantise
from selfdraft.trt_plugins.cached_attention.oracle import cached_attention
from selfdraft.trt_plugins.cached_attention.states import empty_states

CAPACITY = 1536
Step = Callable[..., Any]
"""A body of the op with the oracle's signature; the result has ``y`` and updates its states."""


class Call(NamedTuple):
    """What one slot does in one call: ``rows`` appended, of which ``accepted`` are kept."""

    rows: int
    accepted: int
    attend_all: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Histories of a batch of slots, and the true tokens of each slot."""

    op: CachedAttention
    calls: list[list[Call]]
    tokens: list[dict[str, NDArray[np.float64]]]
    """For each slot ``q [S, Hq d]``, ``k`` and ``v [S, Hkv d]``."""
    seed: int


class Output(NamedTuple):
    """Output of one true token that was decoded, not read as prompt."""

    position: int
    y: NDArray[np.float64]


def random_replay(op: CachedAttention, *, seed: int, batch: int) -> Replay:
    """Prompt, drafts, a second prompt, drafts: around block and budget boundaries."""
    rng = np.random.default_rng(seed)
    widths = {"q": op.num_heads, "k": op.num_kv_heads, "v": op.num_kv_heads}
    tokens = [
        {name: rng.normal(size=(CAPACITY, heads * op.head_dim)) for name, heads in widths.items()}
        for _ in range(batch)
    ]
    calls = []
    for _ in range(batch):
        first = 64 * int(rng.integers(2, 7)) + int(rng.integers(-4, 5))
        second = int(rng.integers(1, 200))
        calls.append(
            [*_prompt(rng, first), *_drafts(rng, 65), *_prompt(rng, second), *_drafts(rng, 9)]
        )
    return Replay(op=op, calls=calls, tokens=tokens, seed=seed)


def replay_of(seed: int, *, selector: Selector | None = None, batch: int | None = None) -> Replay:
    """Attributes and slots by seed: all selectors, groups, budgets, windows, KV types in turn."""
    rng = np.random.default_rng([seed, 7])
    chosen = selector or SELECTORS[seed % len(SELECTORS)]
    group = int(rng.choice([1, 2, 3, 4]))
    op = make_op(
        selector=chosen,
        num_heads=group,
        num_kv_heads=1,
        sinks=int(rng.integers(0, 3)),
        budget_tokens=64 * int(rng.integers(4, 7)),
        budget_share=float(rng.choice([0.0, 0.0, 0.6])),
        sliding_window=int(rng.choice([0, 0, 250])) if chosen != "infllm_v2" else 0,
        scale=0.7,
        kv_dtype=("fp32", "fp32", "fp32", "int8")[seed // 4 % 4],
    )
    return random_replay(op, seed=seed, batch=batch or (1, 1, 1, 3)[seed % 4])


def plain(replay: Replay, slot: int) -> Replay:
    """The same slot alone: prompts in one piece, every other token by itself."""
    calls: list[Call] = []
    for call in replay.calls[slot]:
        if call.attend_all and calls and calls[-1].attend_all:
            rows = calls[-1].rows + call.rows
            calls[-1] = Call(rows, rows, 1)
        elif call.attend_all:
            calls.append(call)
        else:
            calls += [Call(1, 1, 0)] * call.accepted
    return Replay(op=replay.op, calls=[calls], tokens=[replay.tokens[slot]], seed=replay.seed)


def without_rejections(replay: Replay) -> Replay:
    """The same calls, every draft accepted."""
    calls = [[Call(c.accepted, c.accepted, c.attend_all) for c in slot] for slot in replay.calls]
    return dataclasses.replace(replay, calls=calls)


def play(
    replay: Replay, *, step: Step = cached_attention, fp32_as: type[np.floating[Any]] = np.float64
) -> list[list[Output]]:
    """Run the calls of all slots side by side; the outputs of each slot's decoded tokens.

    ``fp32_as``: the type in which ``step`` takes fp32 caches.
    """
    batch = len(replay.calls)
    rng = np.random.default_rng(replay.seed + 1)
    states = empty_states(replay.op, batch=batch, capacity=CAPACITY, fp32_as=fp32_as)
    past = np.zeros(batch, dtype=np.int64)
    outputs: list[list[Output]] = [[] for _ in range(batch)]
    for index in range(max(len(calls) for calls in replay.calls)):
        now = [calls[index] if index < len(calls) else Call(0, 0, 0) for calls in replay.calls]
        result = step(
            replay.op,
            **_rows(replay, now, past, rng),
            **states,
            past_len=past.copy(),
            row_count=np.array([call.rows for call in now], dtype=np.int64),
            attend_all=np.array([call.attend_all for call in now], dtype=np.int64),
        )
        for slot, call in enumerate(now):
            if not call.attend_all:
                outputs[slot] += [
                    Output(int(past[slot]) + row, result.y[slot, row])
                    for row in range(call.accepted)
                ]
        past += [call.accepted for call in now]
    return outputs


def first_difference(replay: Replay, *, step: Step = cached_attention) -> tuple[int, int] | None:
    """Slot and position of the first output that plain decoding, or loops from scratch, refute.

    Plain decoding must agree bit for bit; the loops check the last token of each slot to 1e-11.
    """
    for slot, outputs in enumerate(play(replay, step=step)):
        alone = play(plain(replay, slot), step=step)[0]
        assert [out.position for out in outputs] == [out.position for out in alone]
        for out, expected in zip(outputs, alone, strict=True):
            if not np.array_equal(out.y, expected.y):
                return slot, out.position
        last = outputs[-1]
        if not np.allclose(last.y, _from_scratch(replay, slot, last.position), rtol=0, atol=1e-11):
            return slot, last.position
    return None


def _from_scratch(replay: Replay, slot: int, position: int) -> NDArray[np.float64]:
    tokens, op = replay.tokens[slot], replay.op
    shape = (CAPACITY, op.num_kv_heads, op.head_dim)
    keys, values = tokens["k"].reshape(shape), tokens["v"].reshape(shape)
    if op.kv_dtype == "int8":
        keys, values = dequantise(*quantise(keys)), dequantise(*quantise(values))
    return brute_row(op, tokens["q"][position], keys, values, position=position)


def _rows(
    replay: Replay, calls: list[Call], past: NDArray[np.int64], rng: np.random.Generator
) -> dict[str, NDArray[np.float64]]:
    """q, k, v ``[B, rows, …]``: true tokens, rejected drafts behind them, padding as NaN."""
    num_rows = max(call.rows for call in calls)
    made = {}
    for name in ("q", "k", "v"):
        array = np.full((len(calls), num_rows, replay.tokens[0][name].shape[1]), np.nan)
        for slot, call in enumerate(calls):
            begin, end = int(past[slot]), int(past[slot]) + call.accepted
            array[slot, : call.accepted] = replay.tokens[slot][name][begin:end]
            rejected = array[slot, call.accepted : call.rows]
            rejected[:] = rng.normal(size=rejected.shape) * 5
        made[name] = array
    return made


def _prompt(rng: np.random.Generator, tokens: int) -> list[Call]:
    calls = []
    while tokens:
        rows = min(int(rng.choice([1, 17, 64, 100, 256])), tokens)
        calls.append(Call(rows, rows, 1))
        tokens -= rows
    return calls


def _drafts(rng: np.random.Generator, most_rows: int) -> list[Call]:
    calls = []
    for _ in range(int(rng.integers(3, 7))):
        rows = min(int(rng.choice([1, 2, 3, 5, 9, 65])), most_rows)
        calls.append(Call(rows, int(rng.integers(1, rows + 1)), 0))
    return calls
