"""Steps of ``attention_cases`` on the ONNX body; needs ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.attention_cases import Step
from support.onnx_op import OnnxOp

from selfdraft.trt_plugins.cached_attention.contract import CachedAttention


@lru_cache(maxsize=32)
def body(op: CachedAttention) -> OnnxOp:
    """A session over the op's body."""
    return OnnxOp(op)


def zeroed(step: Step) -> Step:
    """The step with zeros where its states are NaN: a runtime starts with zeroed states."""
    states = {name: np.nan_to_num(array) for name, array in step.states.items()}
    return replace(step, states=states)


def run_body(step: Step, op: CachedAttention | None = None) -> NDArray[np.float32]:
    """``y [B, n, Hq d]`` over copies of the states, with the step's attributes or those of ``op``."""
    op = op or step.op
    states: dict[str, NDArray[Any]] = {}
    for name in op.states:
        array = step.states[name]
        states[name] = array.astype(np.float32) if array.dtype == np.float64 else array.copy()
    q, k, v = (x.astype(np.float32) for x in (step.q, step.k, step.v))
    lengths = {"past_len": step.past_len, "row_count": step.row_count}
    return body(op)(q, k, v, states, **lengths, attend_all=step.attend_all)
