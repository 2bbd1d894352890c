"""A step of GatedDeltaRule on a GPU: time by kernel, bytes of state, log and rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cuda_driver import Gpu, random_halves
from benchmarks.gpu_timing import Replays, copies_beyond_cache, step_times
from selfdraft.recurrent import DELTA_BLOCK
from selfdraft.trt_plugins.gated_delta_rule.contract import GatedDeltaRule
from selfdraft.trt_plugins.gated_delta_rule.launches import (
    DeltaParams,
    DeltaShape,
    SlotStep,
    memory_bytes,
)

PLACE = 3
"""Rows of the log before the step: about the mean where every draft is kept."""


def decode_step(rows: int) -> SlotStep:
    """A step of one slot within a block or across its end, a state that is only read."""
    return SlotStep(past_len=100 * DELTA_BLOCK + PLACE, rows=rows, replay=PLACE)


def timing(
    gpu: Gpu, cubins: Mapping[str, bytes], op: GatedDeltaRule, *, rows: int, replays: Replays
) -> dict[str, Any]:
    """Median time of a step and of each of its kernels, states from memory each time."""
    step = decode_step(rows)
    shape = DeltaShape(op=op, batch=1, rows=rows)
    wanted = memory_bytes(op, [step])
    copies = copies_beyond_cache(gpu, wanted)
    common = _common_arrays(gpu, shape, step)
    blocks = [
        DeltaParams(**common, **_states(gpu, op, seed=i), **shape.integers) for i in range(copies)
    ]

    whole, by_kernel = step_times(gpu, cubins, shape.launches(), blocks, replays=replays)
    gpu.free_all()
    return {
        "rows": rows,
        "us": whole,
        "us_by_kernel": by_kernel,
        "memory_bytes": wanted,
        "gb_s": round(wanted / whole / 1e3, 2),
    }


def _common_arrays(gpu: Gpu, shape: DeltaShape, step: SlotStep) -> dict[str, int]:
    """Inputs, output and workspace, which every copy of the states uses."""
    op, rows = shape.op, shape.rows
    rng = np.random.default_rng(3)
    gates = (1, rows, op.num_value_heads)
    given: dict[str, NDArray[Any]] = {
        "x": random_halves((1, rows, op.channels), seed=1),
        "beta": rng.uniform(0.1, 0.9, gates).astype(np.float32),
        "log_decay": -rng.exponential(0.5, gates).astype(np.float32),
        "conv_weight": rng.uniform(-0.5, 0.5, (op.channels, op.taps)).astype(np.float32),
    }
    lengths = {"past_len": step.past_len, "row_count": step.rows, "replay_rows": step.replay}
    given |= {name: np.full(1, value, dtype=np.int64) for name, value in lengths.items()}
    arrays = {name: gpu.upload_new(array) for name, array in given.items()}
    arrays["y"] = gpu.allocate(rows * op.value_size * 4)
    arrays["mixed"] = gpu.allocate(shape.workspace_bytes)
    return arrays


def _states(gpu: Gpu, op: GatedDeltaRule, *, seed: int) -> dict[str, int]:
    """Random contents: what was only allocated may read faster than it should."""
    arrays: dict[str, NDArray[Any]] = {
        name: random_halves((1, *dims), seed=seed).astype(op.state_types[name])
        for name, dims in op.state_shapes.items()
    }
    arrays["gate_rows"] = -np.abs(arrays["gate_rows"])
    return {name: gpu.upload_new(array) for name, array in arrays.items()}
