"""Reading an ONNX Runtime profile: where a step's time goes, and whether it copies a cache."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

IN_PLACE_OPS = frozenset({"ScatterND", "TensorScatter", "GroupQueryAttention"})
"""Operators that update a state inside the buffer it is bound to."""
FASTEST_COPY_BYTES_PER_S = 200e9
"""More than a CPU can copy: a node that is quicker than this has not touched its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTime:
    """One node of the graph, over every profiled run."""

    name: str
    op: str
    runs: int
    total_us: float
    min_us: float
    output_bytes: int
    """Size of its largest output set, in bytes."""


def read_nodes(profile: Path) -> list[NodeTime]:
    """Nodes of a profile written by a session, slowest in total first."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    for event in json.loads(profile.read_text(encoding="utf-8")):
        name = event.get("name", "")
        if event.get("cat") != "Node" or not name.endswith("_kernel_time"):
            continue
        args: dict[str, Any] = event["args"]
        key = (name.removesuffix("_kernel_time"), args["op_name"])
        times[key].append(float(event["dur"]))
        sizes[key] = max(sizes[key], int(args.get("output_size", 0)))
    nodes = [
        NodeTime(
            name=name,
            op=op,
            runs=len(us),
            total_us=sum(us),
            min_us=min(us),
            output_bytes=sizes[name, op],
        )
        for (name, op), us in times.items()
    ]
    return sorted(nodes, key=lambda node: -node.total_us)


def cache_sized_copies(profile: Path, threshold_bytes: int) -> list[NodeTime]:
    """Nodes that wrote ``threshold_bytes`` or more in a run: empty when states stay in place.

    An operator of ``IN_PLACE_OPS`` names the whole state as its output; it counts as a copy only
    if its quickest run took as long as a copy of that size must.
    """
    return [
        node
        for node in read_nodes(profile)
        if node.output_bytes >= threshold_bytes and not _stayed_in_place(node)
    ]


def _stayed_in_place(node: NodeTime) -> bool:
    copy_us = node.output_bytes / FASTEST_COPY_BYTES_PER_S * 1e6
    return node.op in IN_PLACE_OPS and node.min_us < copy_us


def time_by_op(nodes: list[NodeTime]) -> list[tuple[str, int, float]]:
    """``(operator, nodes, microseconds in total)``, slowest first."""
    totals: dict[str, tuple[int, float]] = {}
    for node in nodes:
        count, us = totals.get(node.op, (0, 0.0))
        totals[node.op] = (count + 1, us + node.total_us)
    rows = [(op, count, us) for op, (count, us) in totals.items()]
    return sorted(rows, key=lambda row: -row[2])
