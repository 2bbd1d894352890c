"""The CUDA kernels on the GPU at hand: checked, timed, compared with the card's own copy speed.

    python -m benchmarks.gpu --json results.jsonl

Needs an NVIDIA driver and nvcc or NVRTC, nothing else. Not run yet: no GPU was at hand. Where torch has
CUDA, its dense fp16 attention is timed beside ours.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import gpu_attention, gpu_delta, gpu_matmul
from benchmarks.cuda_driver import Gpu
from benchmarks.device_library import compile_for, find_toolchain
from benchmarks.gpu_timing import COPY_BYTES, Replays, copy_gb_s
from benchmarks.record import record, write_records
from selfdraft.errors import ToolkitError
from selfdraft.trt_plugins.build.kernel_list import kernel_sources
from selfdraft.trt_plugins.build.toolchain import Toolchain
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.gated_delta_rule.contract import GatedDeltaRule
from selfdraft.trt_plugins.int4_matmul.contract import GROUP_SIZES, Int4MatMul

LEAST_SHARE = 0.75
"""Wanted share of the card's copy speed: one row of a large matrix, attention at 128K."""
LARGE_BYTES = 8_000_000
MOST_ERROR = 1e-3
LONG_CONTEXT = 131_072


def _attention(kv_dtype: str) -> CachedAttention:
    """One layer of Qwen3-8B's shape."""
    return CachedAttention(
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        scale=128**-0.5,
        selector="mean_std",
        kv_dtype=kv_dtype,  # type: ignore[arg-type]
    )


def _delta() -> GatedDeltaRule:
    """One gated delta net layer of Qwen3.5-4B's shape."""
    return GatedDeltaRule(
        num_key_heads=16,
        num_value_heads=32,
        key_dim=128,
        value_dim=128,
        taps=4,
        row_dtype="fp16",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured; by default the shapes of docs/kernels.md."""

    matrices: tuple[tuple[int, int], ...] = (
        (4096, 4096),
        (4096, 1024),
        (4096, 12288),
        (12288, 4096),
        (4096, 151936),
    )
    rows: tuple[int, ...] = (1, 2, 5, 9, 16, 32, 512)
    group: int = 128
    checked: tuple[int, int] = (2560, 1000)
    attention: tuple[CachedAttention, ...] = field(
        default_factory=lambda: (_attention("fp16"), _attention("int8"))
    )
    delta: GatedDeltaRule = field(default_factory=_delta)
    contexts: tuple[int, ...] = (4096, 32768, LONG_CONTEXT)
    step_rows: tuple[int, ...] = (1, 2, 5)
    replays: Replays = field(default_factory=Replays)
    copy_bytes: int = COPY_BYTES


def measure(gpu: Gpu, toolchain: Toolchain, plan: Plan) -> Iterator[dict[str, Any]]:
    """One record for each figure, agreement first."""
    cubins = {
        source.path.stem: compile_for(gpu, source.path, toolchain) for source in kernel_sources()
    }
    copy = copy_gb_s(gpu, replays=plan.replays, num_bytes=plan.copy_bytes)
    about = {
        "gpu": gpu.name,
        "arch": gpu.arch,
        "compiler": f"{toolchain.name} {toolchain.version}",
        "copy_gb_s": round(copy, 2),
    }
    yield from _checks(gpu, cubins["int4_matmul"], plan, about)
    yield from _matmuls(gpu, cubins["int4_matmul"], plan, about)
    yield from _steps(gpu, cubins, plan, about)
    yield from _delta_steps(gpu, cubins, plan, about)


def _checks(gpu: Gpu, cubin: bytes, plan: Plan, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    inputs, outputs = plan.checked
    for group in GROUP_SIZES:
        op = Int4MatMul(in_features=inputs, out_features=outputs, group_size=group)
        found = gpu_matmul.agreement(gpu, cubin, op)
        figures = {
            **about,
            **found,
            "figure": f"error {found['error']:.1e}, alone equal: {found['rows_alone_equal']}",
            "wanted": f"at most {MOST_ERROR:.0e}, equal bits",
            "met": found["error"] <= MOST_ERROR and found["rows_alone_equal"],
        }
        yield record(f"int4 agreement, group {group}", figures, threads=1)


def _matmuls(gpu: Gpu, cubin: bytes, plan: Plan, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for inputs, outputs in plan.matrices:
        op = Int4MatMul(in_features=inputs, out_features=outputs, group_size=plan.group)
        for rows in plan.rows:
            found = gpu_matmul.timing(gpu, cubin, op, rows=rows, replays=plan.replays)
            judged = rows == 1 and found["memory_bytes"] >= LARGE_BYTES
            yield _judged(f"int4 {inputs}x{outputs}, {rows} rows", found, about, judged=judged)


def _steps(
    gpu: Gpu, cubins: dict[str, bytes], plan: Plan, about: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    for op in plan.attention:
        for context in plan.contexts:
            dense = gpu_attention.dense_framework_us(op, context=context, replays=plan.replays)
            for rows in plan.step_rows:
                shape = gpu_attention.step_shape(gpu, op, context=context, rows=rows)
                found = gpu_attention.timing(
                    gpu, cubins, shape, context=context, replays=plan.replays
                )
                found["torch_dense_fp16_us"] = dense
                judged = rows == 1 and context == LONG_CONTEXT
                name = f"attention {op.kv_dtype} at {context}, {rows} rows"
                yield _judged(name, found, about, judged=judged)


def _delta_steps(
    gpu: Gpu, cubins: dict[str, bytes], plan: Plan, about: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    for rows in plan.step_rows:
        found = gpu_delta.timing(gpu, cubins, plan.delta, rows=rows, replays=plan.replays)
        yield _judged(f"gated delta rule, {rows} rows", found, about, judged=False)


def _judged(
    name: str, found: dict[str, Any], about: dict[str, Any], *, judged: bool
) -> dict[str, Any]:
    share = found["gb_s"] / about["copy_gb_s"]
    figures = {
        **about,
        **found,
        "share_of_copy": round(share, 4),
        "figure": f"{found['us']:.1f} us, {found['gb_s']:.0f} GB/s, {share:.0%} of the copy",
        "wanted": f"at least {LEAST_SHARE:.0%} of the copy" if judged else "",
        "met": share >= LEAST_SHARE if judged else None,
    }
    return record(name, figures, threads=1)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print or append JSON lines; 1 when a figure misses its mark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="append JSON lines here instead of printing them")
    args = parser.parse_args(arguments)
    missed = False
    try:
        for entry in measure(Gpu(), find_toolchain(), Plan()):
            write_records([entry], args.json)
            missed = missed or entry["met"] is False
    except ToolkitError as error:
        print(f"error: {error.problem}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
