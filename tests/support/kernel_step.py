"""Steps of the attention op executed by the kernels on the host, in the layouts of Orin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.host_kernels import host_library, kernel_file

from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.cached_attention.int8_kv import quantise
from selfdraft.trt_plugins.cached_attention.launches import (
    POINTERS,
    StepParams,
    StepShape,
    state_shapes,
)
from selfdraft.trt_plugins.host.launch import Traffic, params_from

Arrays = dict[str, NDArray[Any]]
STATE_TYPES = {"k_scale": np.float16, "v_scale": np.float16, "summary": np.float16}
Edits = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelStep:
    """Inputs of one call: ``q, k, v [B, n, heads, d]`` fp16, states in Orin's layouts."""

    op: CachedAttention
    q: NDArray[np.float16]
    k: NDArray[np.float16]
    v: NDArray[np.float16]
    states: Arrays
    past_len: NDArray[np.int64]
    row_count: NDArray[np.int64]
    attend_all: NDArray[np.int64]
    splits: int = 3
    prefill: bool = False

    @property
    def blocks(self) -> int:
        return int(self.states["k_cache"].shape[1])

    @property
    def shape(self) -> StepShape:
        batch, rows = self.q.shape[:2]
        return StepShape(
            op=self.op,
            batch=batch,
            rows=rows,
            blocks=self.blocks,
            splits=1 if self.prefill else self.splits,
            prefill=self.prefill,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelResult:
    """What the kernels left: ``y [B, n, Hq, d]``, states, workspace, bytes by kernel file."""

    y: NDArray[np.float16]
    states: Arrays
    workspace: Arrays
    blocks_read: int | None
    traffic: dict[str, Traffic] = field(default_factory=dict)

    def lists(self, slot: int, kv_head: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """For each tile the block ids on its list, and the rows of the tile that see each."""
        found = []
        for tile in range(self.workspace["list_count"].shape[2]):
            count = int(self.workspace["list_count"][slot, kv_head, tile])
            entries = self.workspace["list"][slot, kv_head, tile, :count].astype(np.int64)
            found.append((entries >> 16, entries & 0xFFFF))
        return found


def poisoned(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An array whose bits are all one: NaN, or -1."""
    array = np.empty(shape, dtype=dtype)
    array.view(np.uint8)[...] = 0xFF
    return array


def run_kernels(
    step: KernelStep,
    *,
    seed: int = 0,
    edits: Edits = (),
    edited: str = "",
    workspace: Arrays | None = None,
) -> KernelResult:
    """Run the step's kernels in order on copies of its states.

    ``edits`` go into the kernel file ``edited``. ``workspace``: what an earlier step of the same
    shape left; poisoned where it is not given.
    """
    shape = step.shape
    states = {name: array.copy() for name, array in step.states.items()}
    if workspace is None:
        workspace = {name: poisoned(dims, dtype) for name, (dims, dtype) in shape.workspace.items()}
    counter = None if step.op.selector == "all" else np.full(1, -7, dtype=np.int64)
    y = poisoned(step.q.shape, np.float16)
    given: dict[str, Any] = {
        **dict.fromkeys(POINTERS),
        "q": step.q,
        "k": step.k,
        "v": step.v,
        **states,
        "past_len": step.past_len,
        "row_count": step.row_count,
        "attend_all": step.attend_all,
        "y": y,
        "blocks_read": counter,
        **workspace,
        **shape.integers,
        "scale": step.op.scale,
        "spread": step.op.spread,
    }
    params, arrays = params_from(StepParams, **given)
    traffic = {}
    for launch in shape.launches():
        source = kernel_file(f"cached_attention/csrc/{launch.file}.cu")
        mutant = edits and launch.file == edited
        library = host_library(source, only(source, launch.kernel, edits) if mutant else ())
        traffic[launch.file] = library.launch(
            launch.kernel,
            params,
            arrays=arrays,
            **launch.settings,
            seed=seed,
        )
    return KernelResult(
        y=y,
        states=states,
        workspace=workspace,
        blocks_read=None if counter is None else int(counter[0]),
        traffic=traffic,
    )


def only(source: Path, kernel: str, edits: Edits) -> Edits:
    """``edits``, and the file's other kernels taken out: a mutant is compiled for one test."""
    lines = source.read_text().splitlines()
    others = [
        x for x in lines if x.startswith("SD_KERNEL(") and not x.startswith(f"SD_KERNEL({kernel},")
    ]
    return (*edits, *((line, "") for line in others))


def random_step(
    op: CachedAttention,
    lengths: Sequence[int],
    *,
    rows: int,
    seed: int,
    row_count: Sequence[int] | None = None,
    attend_all: Sequence[int] | None = None,
    spare_blocks: int = 1,
    splits: int = 3,
) -> KernelStep:
    """A step after which slot b holds ``lengths[b]`` tokens, where they fit.

    Everything behind the length is NaN (int8: its scale), and so are summaries that no step has
    completed. Keys drift with their position, so that blocks differ.
    """
    rng = np.random.default_rng(seed)
    batch = len(lengths)
    counts = np.array(row_count or [min(rows, n) for n in lengths], dtype=np.int64)
    past = np.array(lengths, dtype=np.int64) - counts
    blocks = -(-(max(lengths) + 2) // op.block) + spare_blocks
    heads = {"q": op.num_heads, "k": op.num_kv_heads, "v": op.num_kv_heads}
    new = {
        name: rng.normal(size=(batch, rows, count, op.head_dim)).astype(np.float16)
        for name, count in heads.items()
    }
    states = {
        name: poisoned(
            dims, STATE_TYPES.get(name, np.int8 if op.kv_dtype == "int8" else np.float16)
        )
        for name, dims in state_shapes(op, batch=batch, blocks=blocks).items()
    }
    for slot in range(batch):
        fill_slot(op, states, slot=slot, past=int(past[slot]), rng=rng)
    return KernelStep(
        op=op,
        **new,
        states=states,
        past_len=past,
        row_count=counts,
        attend_all=np.array(attend_all or [0] * batch, dtype=np.int64),
        splits=splits,
    )


def fill_slot(
    op: CachedAttention, states: Arrays, *, slot: int, past: int, rng: np.random.Generator
) -> None:
    """Random keys and values up to ``past``, and the summaries of what they complete."""
    shape = (-(-max(past, 1) // op.block), op.num_kv_heads, op.block, op.head_dim)
    for name in ("k", "v"):
        x = rng.normal(size=shape) + rng.normal(size=(shape[0], op.num_kv_heads, 1, op.head_dim))
        cache = states[f"{name}_cache"][slot, : shape[0]]
        seen = np.arange(shape[0] * op.block).reshape(-1, 1, op.block) < past
        if op.kv_dtype == "int8":
            codes, scale = quantise(x.astype(np.float16))
            cache[...] = codes
            scales = states[f"{name}_scale"][slot, : shape[0]]
            scales[...] = np.where(seen, scale, np.float16(np.nan))
        else:
            cache[...] = np.where(seen[..., None], x, np.nan)
    if op.summary_vectors:
        refresh_summaries(op, states, slot=slot, length=past)


def tokens_of(op: CachedAttention, states: Arrays, name: str, slot: int) -> NDArray[np.float64]:
    """Keys or values of a slot as they are read: ``[Hkv, S, d]`` fp64."""
    cache = states[f"{name}_cache"][slot].astype(np.float64)  # [N, Hkv, 64, d]
    if op.kv_dtype == "int8":
        cache *= states[f"{name}_scale"][slot].astype(np.float64)[..., None]
    return cache.swapaxes(0, 1).reshape(op.num_kv_heads, -1, op.head_dim)


def expected_summaries(
    op: CachedAttention, states: Arrays, *, slot: int, length: int
) -> NDArray[np.float64]:
    """``[Hkv, N, vectors, d]`` from the keys; NaN where nothing is complete at ``length``."""
    keys = tokens_of(op, states, "k", slot)
    blocks = keys.shape[1] // op.block
    found = np.full((op.num_kv_heads, blocks, op.summary_vectors, op.head_dim), np.nan)
    for block in range(length // op.block):
        tokens = keys[:, op.block * block : op.block * (block + 1)]
        if op.selector == "mean_std":
            found[:, block] = np.stack([tokens.mean(axis=1), tokens.std(axis=1)], axis=1)
        elif op.selector == "min_max":
            low, high = tokens.min(axis=1), tokens.max(axis=1)
            found[:, block] = np.stack([(high + low) / 2, (high - low) / 2], axis=1)
    if op.selector == "infllm_v2":
        for block in range(blocks):
            for vector, (offset, size) in enumerate([*((16 * i, 32) for i in range(4)), (0, 128)]):
                begin = op.block * block + offset
                if begin + size <= length:
                    found[:, block, vector] = keys[:, begin : begin + size].mean(axis=1)
    return found


def refresh_summaries(op: CachedAttention, states: Arrays, *, slot: int, length: int) -> None:
    summary = expected_summaries(op, states, slot=slot, length=length)
    states["summary"][slot] = summary.astype(np.float16)
