"""Steps of ``GatedDeltaRule`` executed by its kernels, on the host layer or a GPU."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.delta_op import Rows
from support.host_kernels import host_library, kernel_file
from support.int4_cases import Kernels
from support.kernel_step import Edits, only, poisoned

from selfdraft.trt_plugins.gated_delta_rule.contract import GatedDeltaRule
from selfdraft.trt_plugins.gated_delta_rule.launches import DeltaParams, DeltaShape
from selfdraft.trt_plugins.host.launch import Traffic, params_from

SOURCE = "gated_delta_rule/csrc/delta.cu"


class DeltaKernels:
    """Runs the kernels as ``support.delta_op.Slots`` asks a body to; remembers the bytes they moved.

    ``library`` None: the host layer, with ``edits`` in the kernels that begin with ``edited``. Each call
    has another random schedule.
    """

    def __init__(
        self, library: Kernels | None = None, *, seed: int = 0, edits: Edits = (), edited: str = ""
    ) -> None:
        self.library, self.seed, self.edits, self.edited = library, seed, edits, edited
        self.traffic: Counter[str] = Counter()
        """Bytes of the newest step, by kind of access with ``_read`` or ``_written``."""

    @property
    def counts(self) -> bool:
        """Whether bytes are counted: a GPU does not."""
        return self.library is None

    def __call__(
        self, op: GatedDeltaRule, rows: Rows, states: Rows, weight: Any, *lengths: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        batch, count = rows["x"].shape[:2]
        shape = DeltaShape(op=op, batch=batch, rows=count)
        y = poisoned((batch, count, op.value_size), np.float32)
        workspace = {name: poisoned(dims, kind) for name, (dims, kind) in shape.workspace.items()}
        params, arrays = params_from(
            DeltaParams,
            x=rows["x"].astype(np.float16),
            **{name: np.ascontiguousarray(rows[name]) for name in ("beta", "log_decay")},
            conv_weight=weight,
            **states,
            **dict(zip(("past_len", "row_count", "replay_rows"), lengths, strict=True)),
            y=y,
            **workspace,
            **shape.integers,
        )
        self.traffic.clear()
        for launch in shape.launches():
            moved = self._library(launch.kernel).launch(
                launch.kernel,
                params,
                arrays=arrays,
                **launch.settings,
                seed=self.seed,
            )
            self._count(moved)
        self.seed += 1
        return y

    def _library(self, kernel: str) -> Kernels:
        if self.library is not None:
            return self.library
        source = kernel_file(SOURCE)
        mutant = self.edits and kernel.startswith(self.edited)
        return host_library(source, only(source, kernel, self.edits) if mutant else ())

    def _count(self, moved: Traffic) -> None:
        for suffix, kinds in (("read", moved.read), ("written", moved.written)):
            self.traffic.update({f"{kind}_{suffix}": size for kind, size in kinds.items()})
        self.traffic.pop("control_read", None)  # lengths, which every thread reads


def half_states(op: GatedDeltaRule, *, batch: int) -> Rows:
    """States of one layer as the kernels keep them, poisoned: a new sequence reads none of them."""
    return {
        name: poisoned((batch, *dims), op.state_types[name])
        for name, dims in op.state_shapes.items()
    }


def half_rows(rows: Rows) -> Rows:
    """``rows`` with an ``x`` that fp16 holds exactly."""
    return {**rows, "x": rows["x"].astype(np.float16).astype(np.float32)}
