"""What the backend allocates on the device for a bundle, counted before anything is allocated."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from selfdraft.manifest import GraphSpec, Manifest
from selfdraft.runtime.trt.binding import buffer_groups
from selfdraft.runtime.trt.block import block_bytes
from selfdraft.runtime.trt.limits import EngineLimits, Sizes

TURNS = {"backbone": 1, "mtp": 2}
"""Sets of buffers: a pass of the MTP head may read what the one before it wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphAllocation:
    """Device memory that one graph takes beside weights and activations."""

    states: int
    buffers: int
    """Inputs and outputs of its passes; activation memory is shared with the other graph."""


def plan_allocation(
    manifest: Manifest, limits: EngineLimits, *, drafts: int
) -> dict[str, GraphAllocation]:
    """By graph, for a loop of ``limits.batch`` slots with ``drafts`` drafts a step."""
    return {
        name: GraphAllocation(
            states=_state_bytes(graph, limits), buffers=_buffers(name, graph, limits, drafts)
        )
        for name, graph in manifest.graphs.items()
    }


def _state_bytes(graph: GraphSpec, limits: EngineLimits) -> int:
    total = 0
    for state in graph.states:
        shape = state.sizes(batch=limits.batch, capacity=limits.capacity)
        size = math.prod(shape) * np.dtype(state.dtype).itemsize
        total += size if state.aliased else 2 * size  # what the pass writes lies apart
    return total


def _buffers(name: str, graph: GraphSpec, limits: EngineLimits, drafts: int) -> int:
    """Passes of a prompt, of a step's rows and, with several drafts, of one link of the chain."""
    batch = {"batch": limits.batch}
    logit_rows = drafts + 1 if name == "backbone" else 1
    shapes: list[Sizes] = [
        limits.largest("prefill") | batch,
        batch | {"rows": drafts + 1, "logit_rows": logit_rows},
    ]
    if name == "mtp" and drafts > 1:
        shapes.append(batch | {"rows": 1, "logit_rows": 1})
    groups = buffer_groups(graph)
    each = sum(block_bytes(group, sizes) for sizes in shapes for group in groups)
    return TURNS[name] * each
