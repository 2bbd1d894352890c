"""GatedDeltaRule's CUDA source, executed on the host, against the NumPy oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from support.delta_checks import (
    check_bad_drafts,
    check_idle,
    check_oracle,
    check_repeats,
    check_rollback,
)
from support.delta_kernels import DeltaKernels

from selfdraft.errors import ConfigError
from selfdraft.trt_plugins.build.kernel_list import kernel_sources
from selfdraft.trt_plugins.gated_delta_rule.contract import GatedDeltaRule
from selfdraft.trt_plugins.gated_delta_rule.launches import (
    DeltaShape,
    SlotStep,
    check_kernels,
    memory_bytes,
)
from selfdraft.trt_plugins.host.launch import KernelError

OP = GatedDeltaRule(
    num_key_heads=1, num_value_heads=2, key_dim=64, value_dim=64, taps=4, row_dtype="fp16"
)
OPS = {
    "groups of 2": OP,
    "groups of 3, two taps": replace(OP, num_value_heads=3, value_dim=128, taps=2),
    "wide keys, eight taps": replace(OP, num_value_heads=1, key_dim=128, taps=8),
    "published heads": replace(OP, num_key_heads=2, num_value_heads=4, key_dim=128, value_dim=128),
}
Check = Callable[[GatedDeltaRule, DeltaKernels], None]
CHECKS: tuple[Check, ...] = (
    check_oracle,
    check_rollback,
    check_idle,
    check_bad_drafts,
    check_repeats,
)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
def test_kernels_keep(check: Check, name: str) -> None:
    check(OPS[name], DeltaKernels())


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("batch", [1, 3, 4])
def test_kernels_agree_with_the_oracle_over_long_histories(name: str, batch: int) -> None:
    check_oracle(OPS[name], DeltaKernels(seed=1000), batch=batch, steps=150)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("drafts", [1, 2, 3, 4, 8])
def test_200_sequences_of_accepts_and_rejects_leave_the_state_from_scratch(
    drafts: int, batch: int
) -> None:
    check_rollback(OP, DeltaKernels(), batch=batch, drafts=drafts, sequences=200)


def test_what_no_kernel_serves_is_refused_by_name() -> None:
    for changes, text in (
        ({"key_dim": 96}, "key heads of 96"),
        ({"value_dim": 32}, "value heads of 32"),
        ({"taps": 9}, "9 taps"),
        ({"row_dtype": "fp32"}, "rows of fp32"),
    ):
        with pytest.raises(ConfigError, match=text):
            check_kernels(replace(OP, **changes))


@pytest.mark.parametrize("name", OPS)
def test_launches_are_those_of_the_kernel_list(name: str) -> None:
    """What ``plugins build`` checks against limits is what is launched."""
    listed = {k: v for source in kernel_sources() for k, v in source.kernels.items()}
    for launch in DeltaShape(op=OPS[name], batch=2, rows=5).launches():
        entry = listed[launch.kernel]
        assert launch.threads == entry.threads
        assert launch.shared_bytes == entry.dynamic_shared_bytes


def test_decode_step_reads_the_state_once_and_writes_it_every_eighth_token() -> None:
    """Bytes of Qwen3.5-4B's layer: 32 value heads of 128 x 128 fp32 are 2 MiB."""
    op = replace(OP, num_key_heads=16, num_value_heads=32, key_dim=128, value_dim=128)
    state = 32 * 128 * 128 * 4
    within = memory_bytes(op, [SlotStep(past_len=803, rows=2, replay=3)])
    across = memory_bytes(op, [SlotStep(past_len=807, rows=2, replay=7)])
    commits = memory_bytes(op, [SlotStep(past_len=808, rows=2, replay=8)])
    assert state < within < across < 1.4 * state
    assert 2 * state < commits < 2.5 * state


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A line of a kernel, what stands there instead, and the check that must fail."""

    name: str
    kernel: str
    old: str
    new: str = ""
    check: Check
    quick: bool = False


MUTANTS = [
    Mutant(
        name="mix: a new sequence has nothing before it",
        kernel="delta_mix",
        old="    if (w.fresh) return 0;\n",
        check=check_oracle,
    ),
    Mutant(
        name="mix: queries are scaled",
        kernel="delta_mix",
        old="head < p.key_heads ? query_scale : 1.0f",
        new="1.0f",
        check=check_oracle,
    ),
    Mutant(
        name="scan: a new sequence starts from zero",
        kernel="delta_scan",
        old="w.fresh ? 0 : load_global<Traffic::state>(state_at(i))",
        new="load_global<Traffic::state>(state_at(i))",
        check=check_oracle,
    ),
    Mutant(
        name="scan: a short first step leaves a state of zero",
        kernel="delta_scan",
        old="    if (w.fresh && w.moved == 0) write_state(state);\n",
        check=check_oracle,
        quick=True,
    ),
    Mutant(
        name="scan: the state stays behind the rows that may be taken back",
        kernel="delta_scan",
        old="(block + 1) * block_rows == w.moved",
        new="block + 1 == blocks",
        check=check_rollback,
    ),
    Mutant(
        name="scan: rows behind the window are zeros",
        kernel="delta_scan",
        old="    const bool valid = t < w.total();\n",
        new="    const bool valid = t < p.window;\n",
        check=check_oracle,
    ),
    Mutant(
        name="scan: gates behind the window are not read",
        kernel="delta_scan",
        old="threadIdx.x >= 2 * block_rows || t >= w.total()",
        new="threadIdx.x >= 2 * block_rows",
        check=check_oracle,
    ),
    Mutant(
        name="scan: rows write what the rows before them left to write",
        kernel="delta_scan",
        old="      for (int other = 0; other < row; ++other) {\n",
        new="      for (int other = 0; other < 0; ++other) {\n",
        check=check_oracle,
    ),
    Mutant(
        name="scan: a later row cannot spoil an earlier one",
        kernel="delta_scan",
        old="        if (other <= row) y = multiply_add",
        new="        y = multiply_add",
        check=check_bad_drafts,
        quick=True,
    ),
    Mutant(
        name="scan: value heads of a group share a key head",
        kernel="delta_scan",
        old="head / (p.value_heads / p.key_heads)",
        new="head % p.key_heads",
        check=check_oracle,
    ),
    Mutant(
        name="scan: the block's rows are there for all",
        kernel="delta_scan",
        old="      __syncthreads();  // the block's rows and gates are there for all\n",
        check=check_repeats,
    ),
    Mutant(
        name="scan: every warp has asked its part of the state",
        kernel="delta_scan",
        old="      __syncthreads();  // every warp has asked its part of the state\n",
        check=check_repeats,
        quick=True,
    ),
    Mutant(
        name="scan: the block has been read before the next gates come",
        kernel="delta_scan",
        old="      __syncthreads();  // the block has been read\n",
        check=check_repeats,
    ),
    Mutant(
        name="scan: the block has arrived",
        kernel="delta_scan",
        old="      copy_async_wait<1>();\n",
        check=check_repeats,
    ),
    Mutant(
        name="scan: padding gives zeros",
        kernel="delta_scan",
        old="row < p.rows; row += delta_warps) store_row(row, 0)",
        new="row < 0; row += delta_warps) store_row(row, 0)",
        check=check_oracle,
    ),
    Mutant(
        name="log: rows move on with the state",
        kernel="delta_log",
        old="raw_input(p, w, w.moved + row, channel, channels)",
        new="raw_input(p, w, row, channel, channels)",
        check=check_oracle,
    ),
    Mutant(
        name="log: gates move on with the state",
        kernel="delta_log",
        old="gate(p, w, w.moved + row, column)",
        new="gate(p, w, row, column)",
        check=check_oracle,
    ),
    Mutant(
        name="log: a new sequence's log begins with zeros",
        kernel="delta_log",
        old="w.moved == 0 && !w.fresh ? before + w.replay : 0",
        new="w.moved == 0 ? before + w.replay : 0",
        check=check_oracle,
    ),
    Mutant(
        name="log: a slot without rows keeps its log",
        kernel="delta_log",
        old="  if (w.count == 0) return;\n  const int channels = channels_of(p, key_dim, value_dim);\n  const int channel_ctas",
        new="  const int channels = channels_of(p, key_dim, value_dim);\n  const int channel_ctas",
        check=check_idle,
    ),
    Mutant(
        name="the state's length moves by blocks",
        kernel="delta_",
        old="  const i64 begun = past / block_rows * block_rows;",
        new="  const i64 begun = past;",
        check=check_oracle,
    ),
]


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(m, id=m.name, marks=() if m.quick else pytest.mark.slow) for m in MUTANTS],
)
def test_each_rule_is_needed(mutant: Mutant) -> None:
    op = OPS["published heads" if "group" in mutant.name else "groups of 2"]
    kernels: Any = DeltaKernels(edits=((mutant.old, mutant.new),), edited=mutant.kernel)
    with pytest.raises((AssertionError, KernelError)):
        mutant.check(op, kernels)
