"""How a step of ``GatedDeltaRule`` is launched: kernels, grids, shared memory, workspace, bytes.

Everything follows from attributes and the number of rows, never from lengths: one plan, and one CUDA
graph, serves every step of its shape. Kernels: csrc/delta.cu, parameters: csrc/step.cuh.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from ctypes import c_int32
from dataclasses import dataclass

import numpy as np

from selfdraft.errors import ConfigError
from selfdraft.recurrent import DELTA_BLOCK, LOG_ROWS, state_length
from selfdraft.trt_plugins.gated_delta_rule.contract import GatedDeltaRule
from selfdraft.trt_plugins.host.launch import POINTER, KernelLaunch, params_kind

HEAD_DIMS = (64, 128)
MOST_TAPS = 8
THREADS = 128
WARPS = THREADS // 32
COLUMNS = 32
"""Columns of a state that one thread block keeps."""
FP16, FP32 = 2, 4

POINTERS = (
    "x",
    "beta",
    "log_decay",
    "conv_weight",
    "recurrent",
    "conv_rows",
    "gate_rows",
    "past_len",
    "row_count",
    "replay_rows",
    "y",
    "mixed",
)
INTEGERS = ("batch", "rows", "key_heads", "value_heads", "taps", "window")
DeltaParams = params_kind(
    "DeltaStep", **dict.fromkeys(POINTERS, POINTER), **dict.fromkeys(INTEGERS, c_int32)
)
"""``struct DeltaStep`` of csrc/step.cuh."""


def check_kernels(op: GatedDeltaRule) -> None:
    """Raise ``ConfigError`` for attributes that no kernel serves."""
    _require(op.key_dim in HEAD_DIMS, f"key heads of {op.key_dim}", "64 or 128")
    _require(op.value_dim in HEAD_DIMS, f"value heads of {op.value_dim}", "64 or 128")
    _require(op.taps <= MOST_TAPS, f"convolutions of {op.taps} taps", f"at most {MOST_TAPS}")
    _require(op.row_dtype == "fp16", f"rows of {op.row_dtype}", "fp16")


def _require(holds: bool, found: str, wanted: str) -> None:
    if not holds:
        raise ConfigError(
            f"the kernels of GatedDeltaRule serve no {found} (they serve {wanted})",
            hint="export with --target cpu",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape:
    """A step of ``rows`` rows in each of ``batch`` slots. Raises ``ConfigError``: ``check_kernels``."""

    op: GatedDeltaRule
    batch: int
    rows: int

    def __post_init__(self) -> None:
        check_kernels(self.op)

    @property
    def window(self) -> int:
        """Rows of log and step together, whole blocks (W)."""
        return -(-(self.rows + LOG_ROWS) // DELTA_BLOCK) * DELTA_BLOCK

    @property
    def integers(self) -> dict[str, int]:
        """The integer fields of ``DeltaParams``."""
        return {
            "batch": self.batch,
            "rows": self.rows,
            "key_heads": self.op.num_key_heads,
            "value_heads": self.op.num_value_heads,
            "taps": self.op.taps,
            "window": self.window,
        }

    @property
    def workspace(self) -> dict[str, tuple[tuple[int, ...], type[np.float32]]]:
        """Shape and type of each array that nothing is kept in between steps."""
        return {"mixed": ((self.batch, self.window, self.op.channels), np.float32)}

    @property
    def workspace_bytes(self) -> int:
        """Bytes of all of it."""
        return self.batch * self.window * self.op.channels * FP32

    def launches(self) -> list[KernelLaunch]:
        """The kernels in order."""
        op = self.op
        suffix = f"k{op.key_dim}_v{op.value_dim}"
        heads = 2 * op.num_key_heads + op.num_value_heads
        columns = -(-op.channels // THREADS) + -(-2 * op.num_value_heads // THREADS)
        scan = (op.value_dim // COLUMNS, op.num_value_heads, self.batch)
        return [
            KernelLaunch(
                file="delta",
                kernel=f"delta_{name}_{suffix}",
                grid=grid,
                threads=THREADS,
                shared_bytes=shared_bytes,
            )
            for name, grid, shared_bytes in (
                ("mix", (-(-self.window // WARPS), heads, self.batch), 0),
                ("scan", scan, scan_shared_bytes(op.key_dim)),
                ("log", (columns, self.batch, 1), 0),
            )
        ]


def scan_shared_bytes(key_dim: int) -> int:
    """Bytes of ``Layout`` in csrc/delta.cu."""
    rows = 2 * DELTA_BLOCK
    stage = rows * (key_dim + 4) + DELTA_BLOCK * COLUMNS
    partial = WARPS * rows * COLUMNS
    likeness = 2 * DELTA_BLOCK * DELTA_BLOCK
    gates = 4 * DELTA_BLOCK
    return FP32 * (2 * stage + partial + likeness + gates)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStep:
    """Lengths of one slot in a step; ``rows`` 0: it idles."""

    past_len: int
    rows: int
    replay: int
    """Rows of the log before ``past_len``."""

    @property
    def total(self) -> int:
        """Rows of the window: replayed and new ones."""
        return self.replay + self.rows

    @property
    def fresh(self) -> bool:
        """Whether a sequence begins, whose states hold nothing."""
        return self.past_len == 0

    @property
    def moved(self) -> int:
        """Rows by which the state's length moves on."""
        return state_length(self.past_len, self.rows) - (self.past_len - self.replay)


def bytes_asked_for(op: GatedDeltaRule, step: Sequence[SlotStep], *, rows: int) -> dict[str, int]:
    """Bytes that the loads and stores of a step's kernels name, lengths apart, caches ignored.

    Keys: kind of access as in ``device.cuh``, with ``_read`` or ``_written``.
    """
    total: Counter[str] = Counter()
    for slot in step:
        if slot.rows:
            total += _mix_bytes(op, slot) + _scan_bytes(op, slot) + _log_bytes(op, slot)
        total["output_written"] += rows * op.value_size * FP32
    return dict(total)


def memory_bytes(op: GatedDeltaRule, step: Sequence[SlotStep]) -> int:
    """Bytes that must cross the memory bus: states, logs, rows and outputs once, weights once a step."""
    total = op.channels * op.taps * FP32
    for slot in step:
        if not slot.rows:
            continue
        named = _log_bytes(op, slot) + _scan_bytes(op, slot)
        total += named["state_read"] + named["state_written"] + named["log_written"]
        logged = 0 if slot.fresh else op.taps - 1 + slot.replay
        total += logged * op.channels * FP16 + slot.replay * 2 * op.num_value_heads * FP32
        total += slot.rows * (op.channels * FP16 + (2 * op.num_value_heads + op.value_size) * FP32)
    return total


def _mix_bytes(op: GatedDeltaRule, slot: SlotStep) -> Counter[str]:
    logged = sum(
        t + tap < op.taps - 1 + slot.replay for t in range(slot.total) for tap in range(op.taps)
    )
    read = slot.total * op.taps - logged
    return Counter(
        weight_read=slot.total * op.taps * op.channels * FP32,
        log_read=0 if slot.fresh else logged * op.channels * FP16,
        rows_read=read * op.channels * FP16,
        partial_written=slot.total * op.channels * FP32,
    )


def _scan_bytes(op: GatedDeltaRule, slot: SlotStep) -> Counter[str]:
    blocks = op.num_value_heads * op.value_dim // COLUMNS  # thread blocks
    state = op.num_value_heads * op.key_dim * op.value_dim * FP32
    return Counter(
        partial_read=blocks * slot.total * (2 * op.key_dim + COLUMNS) * FP32,
        log_read=blocks * slot.replay * 2 * FP32,
        rows_read=blocks * slot.rows * 2 * FP32,
        state_read=0 if slot.fresh else state,
        state_written=state if slot.fresh or slot.moved else 0,
    )


def _log_bytes(op: GatedDeltaRule, slot: SlotStep) -> Counter[str]:
    """What stays in its place is not touched."""
    before, gates = op.taps - 1, 2 * op.num_value_heads * FP32
    stays = slot.moved == 0
    first = before + slot.replay if stays and not slot.fresh else 0
    end = before + slot.total - slot.moved
    logged = max(before + slot.replay - slot.moved - first, 0)
    gate_first, gate_end = (slot.replay if stays else 0), slot.total - slot.moved
    gates_logged = max(slot.replay - slot.moved - gate_first, 0)
    channels = op.channels * FP16
    return Counter(
        log_written=(end - first) * channels + (gate_end - gate_first) * gates,
        log_read=(0 if slot.fresh else logged * channels) + gates_logged * gates,
        rows_read=(end - first - logged) * channels
        + (gate_end - gate_first - gates_logged) * gates,
    )
