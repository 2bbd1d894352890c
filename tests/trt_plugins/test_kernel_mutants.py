"""Each rule of the attention kernels is needed: without its line a named check fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from support.kernel_cases import make_kernel_op
from support.kernel_checks import (
    check_attention,
    check_caches,
    check_counter,
    check_logits,
    check_padding,
    check_selection,
    check_summaries,
)
from support.kernel_step import Edits, KernelResult, KernelStep, random_step, run_kernels

from selfdraft.trt_plugins.host.launch import KernelError

Check = Callable[[KernelStep, KernelResult], None]
SEEDS = range(16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A line of a kernel, what stands there instead, and the check that must fail."""

    name: str
    file: str
    old: str
    new: str = ""
    check: Check
    op: dict[str, Any] = field(default_factory=dict)
    length: int = 700
    rows: int = 3
    prefill: bool = False
    ties: bool = False
    """All scores are the same."""
    quick: bool = False

    def step(self, seed: int) -> KernelStep:
        """Two slots, the second with a row of padding."""
        op = make_kernel_op(**{"selector": "mean_std", "budget_tokens": 320, **self.op})
        lengths = [self.length + seed, 129]
        step = random_step(
            op, lengths, rows=self.rows, seed=seed, row_count=[self.rows, max(self.rows - 1, 1)]
        )
        if self.ties:
            step.states["summary"][:] = 0
        return replace(step, prefill=self.prefill)

    @property
    def edits(self) -> Edits:
        return ((self.old, self.new),)


INFLLM = {"selector": "infllm_v2"}
INT8 = {"kv_dtype": "int8"}
MUTANTS = [
    Mutant(
        name="append: a window takes drafts of this step from k (rollback)",
        file="append",
        old="    if (token < past) return key(token, 0, channel);",
        new="    return key(token, 0, channel);",
        check=check_summaries,
        op=INFLLM,
        length=760,
        rows=20,
        quick=True,
    ),
    Mutant(
        name="append: windows that reach over are recomputed (rollback)",
        file="append",
        old="  if (p.selector == select_infllm_v2 && first > 0) first -= 1;\n",
        check=check_summaries,
        op=INFLLM,
        length=695,
        rows=20,
    ),
    Mutant(
        name="append: the block of the last committed token is recomputed (rollback)",
        file="append",
        old="i64 first = (past > 0 ? past - 1 : 0) / block_tokens;",
        new="i64 first = ceil_div(past, static_cast<i64>(block_tokens));",
        check=check_summaries,
        length=695,
        rows=20,
    ),
    Mutant(
        name="append: only tokens of the step are written (tail)",
        file="append",
        old="const i64 end = reach < length ? reach : length;",
        new="const i64 end = reach;",
        check=check_caches,
    ),
    Mutant(
        name="append: incomplete blocks get no summary (mask)",
        file="append",
        old="(p.selector == select_infllm_v2 ? 32 : block_tokens) <= length;",
        new="0 <= length;",
        check=check_summaries,
    ),
    Mutant(
        name="append: a window that is not complete is not written (mask)",
        file="append",
        old="      if (begin + 16 * i + 32 <= length) write_summary",
        new="      write_summary",
        check=check_summaries,
        op=INFLLM,
        length=670,
    ),
    Mutant(
        name="append: keys and scales are written before they are read (barrier)",
        file="append",
        old="    __syncthreads();\n    for (int channel",
        new="    for (int channel",
        check=check_summaries,
        length=690,
        rows=40,
    ),
    Mutant(
        name="score: queries are staged before they are read (barrier)",
        file="score",
        old="  __syncthreads();\n  const int lane",
        new="  const int lane",
        check=check_selection,
    ),
    Mutant(
        name="score: rows of padding have no logits (mask)",
        file="score",
        old="at < end && m < t.num_rows * p.group",
        new="at < end",
        check=check_logits,
        quick=True,
    ),
    Mutant(
        name="score: nothing behind the selectable blocks (tail)",
        file="score",
        old="at < end && m < t.num_rows * p.group",
        new="m < t.num_rows * p.group",
        check=check_logits,
    ),
    Mutant(
        name="score: the spread weighs |q|",
        file="score",
        old="constexpr u32 magnitudes = 0x7fff7fffu;",
        new="constexpr u32 magnitudes = 0xffffffffu;",
        check=check_selection,
    ),
    Mutant(
        name="select: keys are written before they are counted (barrier)",
        file="select",
        old="      __syncthreads();  // zeroed, and in the first pass all keys are written\n",
        check=check_selection,
        length=1500,
    ),
    Mutant(
        name="select: heads are normalised before they are summed (barrier)",
        file="select",
        old="      normalise(row, position);\n      __syncthreads();",
        new="      normalise(row, position);",
        check=check_selection,
    ),
    Mutant(
        name="select: the histogram is whole before a digit is picked (barrier)",
        file="select",
        old="      __syncthreads();\n      if (warp() == 0) pick_digit(shift);",
        new="      if (warp() == 0) pick_digit(shift);",
        check=check_selection,
        length=1500,
    ),
    Mutant(
        name="select: all lanes have read what one of them changes (barrier)",
        file="select",
        old="    __syncwarp();\n",
        check=check_selection,
    ),
    Mutant(
        name="select: ties are counted before they are ranked (barrier)",
        file="select",
        old="      __syncthreads();\n      const u32 mask",
        new="      const u32 mask",
        check=check_selection,
        length=4500,
        ties=True,
    ),
    Mutant(
        name="select: the union is counted before it is written (barrier)",
        file="select",
        old="      __syncthreads();\n      u32 at",
        new="      u32 at",
        check=check_selection,
        length=1500,
    ),
    Mutant(
        name="select: of equal scores only as many as are chosen (tail)",
        file="select",
        old="(key == rule.threshold && tie < rule.ties)",
        new="key == rule.threshold",
        check=check_selection,
        length=1500,
        ties=True,
    ),
    Mutant(
        name="select: nothing behind a row's own block (mask)",
        file="select",
        old="    if (block > rule.own) return false;\n",
        check=check_selection,
        length=644,
        rows=8,
        quick=True,
    ),
    Mutant(
        name="select: the local window is always seen",
        file="select",
        old=" || block >= rule.local || rule.all_chosen",
        new=" || rule.all_chosen",
        check=check_selection,
        op={"selector": "window"},
    ),
    Mutant(
        name="attend: a row sees only its own blocks (mask)",
        file="attend",
        old="(rows >> row & 1) &&",
        check=check_attention,
        length=1500,
        rows=4,
        quick=True,
    ),
    Mutant(
        name="attend: a row sees no later token (mask)",
        file="attend",
        old="  if (token > position) return false;\n",
        check=check_attention,
    ),
    Mutant(
        name="attend: tokens behind the tile's rows are not read (tail)",
        file="attend",
        old="is_read(p, t, first + token));\n    }\n  }\n\n  SD_DEVICE static void fetch_scales",
        new="true);\n    }\n  }\n\n  SD_DEVICE static void fetch_scales",
        check=check_padding,
    ),
    Mutant(
        name="attend: scales behind the tile's rows are cleared (tail)",
        file="attend",
        old="    kv.clear_unread_scales(p, t, stage, first_token(tile));\n",
        check=check_padding,
        op=INT8,
    ),
    Mutant(
        name="attend: keys have landed, and the other stage is free (barrier)",
        file="attend",
        old="    __syncthreads();       // they have landed for all, and the other stage is free\n",
        check=check_attention,
    ),
    Mutant(
        name="attend: the largest logits of all warps (barrier)",
        file="attend",
        old="    __syncthreads();  // the largest logits of all warps\n",
        check=check_attention,
    ),
    Mutant(
        name="attend: weights and values are there for all (barrier)",
        file="attend",
        old="    __syncthreads();       // they and the weights are there for all\n",
        check=check_attention,
    ),
    Mutant(
        name="attend: keys are waited for (asynchronous copies)",
        file="attend",
        old="    copy_async_wait<1>();  // the keys of this tile; its values may be under way\n",
        check=check_attention,
    ),
    Mutant(
        name="attend: values are waited for (asynchronous copies)",
        file="attend",
        old="    copy_async_wait<2>();  // the values of this tile\n",
        check=check_attention,
    ),
    Mutant(
        name="attend: a row that has seen nothing has no largest logit",
        file="attend",
        old="now == -infinity ? 0 : now;",
        new="now;",
        check=check_padding,
        op={"num_kv_heads": 1},
    ),
    Mutant(
        name="attend: what was summed shrinks to the new largest logit",
        file="attend",
        old="      total[half] *= shrink;\n",
        check=check_attention,
    ),
    Mutant(
        name="attend: the queue is whole before it is read (barrier)",
        file="attend",
        old="      if (own) queue[at] = entry;\n      __syncthreads();",
        new="      if (own) queue[at] = entry;",
        check=check_attention,
        op={"selector": "all"},
        length=64 * 150,
    ),
    Mutant(
        name="combine: padding is zero (mask)",
        file="combine",
        old="    if (row_of_tile < t.num_rows) y =",
        new="    y =",
        check=check_padding,
        quick=True,
    ),
    Mutant(
        name="combine: splits that saw nothing are passed over (mask)",
        file="combine",
        old="    if (own == -infinity) continue;  // nothing seen, nothing written\n",
        check=check_padding,
        length=100,
    ),
    Mutant(
        name="combine: the bits are zero before blocks are marked (barrier)",
        file="combine",
        old="  __syncthreads();\n  for (int tile",
        new="  for (int tile",
        check=check_counter,
        length=2000,
        rows=12,
    ),
    Mutant(
        name="combine: all blocks are marked before they are counted (barrier)",
        file="combine",
        old="  __syncthreads();\n  u32 own = 0;",
        new="  u32 own = 0;",
        check=check_counter,
        length=2000,
        rows=12,
    ),
    Mutant(
        name="combine: all warps have counted (barrier)",
        file="combine",
        old="  __syncthreads();\n  if (threadIdx.x > 0) return;",
        new="  if (threadIdx.x > 0) return;",
        check=check_counter,
        length=2500,
    ),
    Mutant(
        name="prefill: a row sees only its own blocks (mask)",
        file="prefill",
        old="const bool sees = row < t.num_rows && (part.rows >> row & 1);",
        new="const bool sees = row < t.num_rows;",
        check=check_attention,
        length=1500,
        rows=20,
        prefill=True,
    ),
    Mutant(
        name="prefill: a part is masked unless all rows see all of it (mask)",
        file="prefill",
        old="    if (!is_whole(part)) hide_unseen(c, part);\n",
        check=check_attention,
        rows=20,
        prefill=True,
        quick=True,
    ),
    Mutant(
        name="prefill: the part ends before the tile's first row, or is masked (tail)",
        file="prefill",
        old="first_token(part) + tokens - 1 <= position_of(t, 0)",
        new="first_token(part) <= position_of(t, 0)",
        check=check_attention,
        rows=20,
        prefill=True,
    ),
    Mutant(
        name="prefill: tokens behind the rows are not read (tail)",
        file="prefill",
        old="is_read(p, t, first + token));\n    }\n  }\n\n  SD_DEVICE static void fetch_scales",
        new="true);\n    }\n  }\n\n  SD_DEVICE static void fetch_scales",
        check=check_padding,
        rows=20,
        prefill=True,
    ),
    Mutant(
        name="prefill: padding is zero (mask)",
        file="prefill",
        old="const bool real = row < t.num_rows;",
        new="const bool real = true;",
        check=check_padding,
        rows=20,
        prefill=True,
    ),
    Mutant(
        name="prefill: keys have landed, and the other stage is free (barrier)",
        file="prefill",
        old="    __syncthreads();       // they have landed for all, the other stage is free, heads are shown\n",
        check=check_attention,
        rows=20,
        prefill=True,
    ),
    Mutant(
        name="prefill: values have landed, and heads have been read (barrier)",
        file="prefill",
        old="    __syncthreads();       // they have landed for all, heads have been read\n",
        check=check_attention,
        rows=20,
        prefill=True,
    ),
    Mutant(
        name="prefill: a warp sits out a block that its list lacks",
        file="prefill",
        old="    if (lowest == no_block || heads[warp()] != lowest) return {lowest, 0, 0};\n",
        new="    if (lowest == no_block) return {lowest, 0, 0};\n",
        check=check_attention,
        length=1500,
        rows=20,
        prefill=True,
    ),
]
QUICK = [mutant for mutant in MUTANTS if mutant.quick]
SLOW = [mutant for mutant in MUTANTS if not mutant.quick]


def noticed(mutant: Mutant, *, edits: Edits, seeds: range) -> bool:
    for seed in seeds:
        step = mutant.step(seed)
        try:
            mutant.check(step, run_kernels(step, seed=seed, edits=edits, edited=mutant.file))
        except (AssertionError, KernelError):
            return True
    return False


def check_mutant(mutant: Mutant) -> None:
    assert not noticed(mutant, edits=(), seeds=range(4)), "the check fails without the edit"
    assert noticed(mutant, edits=mutant.edits, seeds=SEEDS), "the edit is not noticed"


@pytest.mark.parametrize("mutant", QUICK, ids=lambda mutant: mutant.name)
def test_without_the_rule_its_check_fails(mutant: Mutant) -> None:
    check_mutant(mutant)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", SLOW, ids=lambda mutant: mutant.name)
def test_without_any_other_rule_its_check_fails(mutant: Mutant) -> None:
    check_mutant(mutant)
