"""Random steps of the attention op: caches filled to a length, and the rows that come next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.trt_plugins.cached_attention.contract import CachedAttention, Selector
from selfdraft.trt_plugins.cached_attention.int8_kv import quantise
from selfdraft.trt_plugins.cached_attention.oracle import Attended, cached_attention
from selfdraft.trt_plugins.cached_attention.states import empty_states as zeroed_states
from selfdraft.trt_plugins.cached_attention.summaries import refresh

SCORING: tuple[Selector, ...] = ("mean_std", "min_max", "infllm_v2")
SELECTORS: tuple[Selector, ...] = ("all", "window", *SCORING)


def make_op(**changes: Any) -> CachedAttention:
    """A small op: 2 kv heads, group 2, head_dim 4; ``infllm_v2`` with 3 local blocks."""
    op = CachedAttention(num_heads=4, num_kv_heads=2, head_dim=4, scale=0.5, budget_tokens=320)
    if changes.get("selector") == "infllm_v2":
        changes = {"local_blocks": 3, **changes}
    return replace(op, **changes)


def covering(selector: Selector, length: int, *, group: int, dim: int = 8) -> CachedAttention:
    """One kv head, and a budget of exactly the blocks of ``length`` tokens."""
    op = make_op(selector=selector, num_heads=group, num_kv_heads=1, head_dim=dim, scale=dim**-0.5)
    blocks = -(-length // 64)
    if selector == "window":
        return replace(op, local_blocks=max(blocks - op.sinks, 2))
    return replace(op, budget_tokens=64 * max(blocks, op.sinks + op.local_blocks))


def empty_states(op: CachedAttention, *, batch: int, capacity: int) -> dict[str, NDArray[Any]]:
    """Zeroed states by input name, fp32 caches held as fp64."""
    return zeroed_states(op, batch=batch, capacity=capacity, fp32_as=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of the op. ``states`` belong to the case: ``run`` works on copies."""

    op: CachedAttention
    q: NDArray[Any]
    k: NDArray[Any]
    v: NDArray[Any]
    states: dict[str, NDArray[Any]]
    past_len: NDArray[np.int64]
    row_count: NDArray[np.int64]
    attend_all: NDArray[np.int64]

    def run(self, op: CachedAttention | None = None) -> Attended:
        """The oracle's result, with the same attributes or with those of ``op``."""
        op = op or self.op
        states = {name: array.copy() for name, array in self.states.items() if name in op.inputs}
        return cached_attention(
            op,
            self.q,
            self.k,
            self.v,
            **states,
            past_len=self.past_len,
            row_count=self.row_count,
            attend_all=self.attend_all,
        )

    def context(self, result: Attended, slot: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Keys and values ``[S, Hkv, d]`` as ``slot`` reads them after the step."""
        read = []
        for name in ("k", "v"):
            cache = result.states[f"{name}_cache"][slot].astype(np.float64)
            if self.op.kv_dtype == "int8":
                cache *= result.states[f"{name}_scale"][slot].astype(np.float64)[..., None]
            read.append(cache.swapaxes(0, 1))
        return read[0], read[1]


def filled_step(
    op: CachedAttention,
    lengths: list[int],
    *,
    rows: int,
    seed: int,
    row_count: list[int] | None = None,
    attend_all: list[int] | None = None,
    key_size: float = 1.0,
) -> Step:
    """A step of ``rows`` rows after which slot b holds ``lengths[b]`` tokens, where they fit.

    Slots shorter than ``rows`` start empty. What lies behind the length is NaN (int8: its scale).
    """
    rng = np.random.default_rng(seed)
    batch = len(lengths)
    counts = np.array(row_count or [min(rows, length) for length in lengths], dtype=np.int64)
    past = np.array(lengths, dtype=np.int64) - counts
    capacity = -(-(max(lengths) + 2) // op.block) * op.block
    states = empty_states(op, batch=batch, capacity=capacity)
    shape = (batch, op.num_kv_heads, capacity, op.head_dim)
    contents = {"k": rng.normal(size=shape) * key_size, "v": rng.normal(size=shape)}
    for slot in range(batch):
        fill(
            op,
            {n: a[slot] for n, a in states.items()},
            past=int(past[slot]),
            contents={name: array[slot] for name, array in contents.items()},
        )
    width = op.num_kv_heads * op.head_dim
    return Step(
        op=op,
        q=rng.normal(size=(batch, rows, op.num_heads * op.head_dim)) * 2,
        k=rng.normal(size=(batch, rows, width)) * key_size,
        v=rng.normal(size=(batch, rows, width)),
        states=states,
        past_len=past,
        row_count=counts,
        attend_all=np.array(attend_all or [0] * batch, dtype=np.int64),
    )


def with_keys(step: Step, keys: NDArray[Any]) -> Step:
    """The step with its context's keys ``[T]`` or ``[T, d]`` (all heads alike) in their place."""
    op = step.op
    keys = np.broadcast_to(keys if keys.ndim == 2 else keys[:, None], (len(keys), op.head_dim))
    states = {name: array.copy() for name, array in step.states.items()}
    tokens = int(step.past_len[0])
    states["k_cache"][0, :, :tokens] = keys[:tokens]
    refresh(
        op,
        states["summary"][0],
        states["k_cache"][0],
        blocks=range(-(-tokens // 64)),
        length=tokens,
    )
    new = np.tile(keys[tokens:], op.num_kv_heads)[None]
    return replace(step, states=states, k=new)


def fill(
    op: CachedAttention,
    states: dict[str, NDArray[Any]],
    *,
    past: int,
    contents: dict[str, NDArray[np.float64]],
) -> None:
    """States of one slot as if ``contents [Hkv, S, d]`` had been appended up to ``past``."""
    keys = contents["k"]
    for name, array in contents.items():
        if op.kv_dtype == "int8":
            codes, scale = quantise(array)
            states[f"{name}_cache"][:] = codes
            states[f"{name}_scale"][:] = scale
            states[f"{name}_scale"][:, past:] = np.nan
            keys = codes * scale.astype(np.float64)[..., None] if name == "k" else keys
        else:
            states[f"{name}_cache"][:] = array
            states[f"{name}_cache"][:, past:] = np.nan
            keys = states["k_cache"]
    if op.summary_vectors:
        states["summary"][:] = np.nan
        refresh(op, states["summary"], keys, blocks=range(-(-past // op.block)), length=past)


def settled(op: CachedAttention, *, length: int, blocks: int) -> NDArray[np.bool_]:
    """Summary vectors ``[blocks, vectors]`` that the contract defines at ``length`` tokens.

    The others belong to blocks or windows that are not complete: bodies may differ there.
    """
    block = np.arange(blocks)[:, None]
    if op.selector == "infllm_v2":
        fine = 64 * block + 16 * np.arange(4) + 32
        return np.concatenate([fine, 64 * block + 128], axis=1) <= length
    return np.repeat(64 * block + 64 <= length, op.summary_vectors, axis=1)
