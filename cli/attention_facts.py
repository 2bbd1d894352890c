"""What ``inspect`` tells about attention: the plan by layer, and what the states cost."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selfdraft.manifest import AttentionSpec, GraphSpec, Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Neighbouring layers that attend alike."""

    name: str
    """``layers 0-11``, ``layer 3`` or ``MTP layer``."""
    spec: AttentionSpec
    seen_tokens: int
    """Tokens that the last row of the context sees at most."""


def attention_facts(manifest: Manifest, *, context: int) -> list[dict[str, Any]]:
    """The plan as plain values, one entry for each group of layers."""
    return [
        {"layers": group.name, **asdict(group.spec), "seen_tokens": group.seen_tokens}
        for group in layer_groups(manifest, context=context)
    ]


def layer_groups(manifest: Manifest, *, context: int) -> list[LayerGroup]:
    """Groups of layers in order, the MTP layer last."""
    from selfdraft.manifest import AttentionPlan, AttentionSpec
    from selfdraft.trt_plugins.cached_attention.coverage import seen_tokens
    from selfdraft.trt_plugins.cached_attention.from_manifest import layer_ops, mtp_op

    model = manifest.model
    plan = manifest.attention or AttentionPlan(
        layers=(AttentionSpec(),) * model.num_layers, mtp=None
    )
    ops = layer_ops(model, plan)
    starts = [i for i, spec in enumerate(plan.layers) if i == 0 or spec != plan.layers[i - 1]]
    groups = [
        LayerGroup(
            name=f"layer {first}" if first + 1 == end else f"layers {first}-{end - 1}",
            spec=plan.layers[first],
            seen_tokens=seen_tokens(ops[first], length=context),
        )
        for first, end in zip(starts, [*starts[1:], len(plan.layers)], strict=True)
    ]
    if model.mtp:
        op = mtp_op(model, plan)
        spec = plan.mtp or AttentionSpec()
        seen = seen_tokens(op, length=context)
        groups.append(LayerGroup(name="MTP layer", spec=spec, seen_tokens=seen))
    return groups


def group_text(group: LayerGroup, *, context: int) -> str:
    """One group for people."""
    from selfdraft.trt_plugins.cached_attention.contract import DEFAULT_SPREAD

    spec = group.spec
    if spec.selector == "all":
        return "dense"
    share = f" or {spec.budget_share:.1%}" if spec.budget_share else ""
    budget = "" if spec.selector == "window" else f", budget {spec.budget_tokens}{share}"
    weight = f", spread {spec.spread:g}" if spec.selector in DEFAULT_SPREAD else ""
    window = f", window of {spec.sliding_window} tokens" if spec.sliding_window else ""
    return (
        f"{spec.selector}: {spec.sinks} sink and {spec.local_blocks} local blocks{budget}"
        f"{weight}{window}; "
        f"sees {group.seen_tokens} of {context}"
    )


def bytes_by_kind(graph: GraphSpec, *, context: int) -> dict[str, int]:
    """Bytes of the graph's states for one sequence of ``context`` tokens: kv, summary, …"""
    import numpy as np

    from selfdraft.manifest import capacity_for

    totals: dict[str, int] = {}
    for state in graph.states:
        shape = state.sizes(batch=1, capacity=capacity_for(context))
        size = math.prod(shape) * np.dtype(state.dtype).itemsize
        totals[state.kind] = totals.get(state.kind, 0) + size
    return totals
