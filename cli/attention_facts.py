"""What ``inspect`` tells about attention: the plan by layer, and what the states cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selfdraft.manifest import AttentionSpec, GraphSpec, Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Neighbouring layers that attend alike."""

    name: str
    """``layers 0-11``, ``layer 3`` or ``MTP layer``."""
    spec: AttentionSpec | None
    """None: gated delta nets, whose recurrent state stands for all of the context."""
    seen_tokens: int
    """Tokens that the last row of the context sees at most."""


def attention_facts(manifest: Manifest, *, context: int) -> list[dict[str, Any]]:
    """The plan as plain values, one entry for each group of layers."""
    return [
        {
            "layers": group.name,
            **(asdict(group.spec) if group.spec else {"selector": "recurrent"}),
            "seen_tokens": group.seen_tokens,
        }
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
    attending = model.attention_layers
    ops = dict(zip(attending, layer_ops(model, plan), strict=True))
    starts = [
        i
        for i, layer in enumerate(attending)
        if i == 0 or plan.layers[layer] != plan.layers[attending[i - 1]]
    ]
    groups = [
        LayerGroup(
            name=_layers_text(attending[first:end]),
            spec=plan.layers[attending[first]],
            seen_tokens=seen_tokens(ops[attending[first]], length=context),
        )
        for first, end in zip(starts, [*starts[1:], len(attending)], strict=True)
    ]
    if model.delta:
        name = _layers_text(model.delta.layers)
        groups.append(LayerGroup(name=name, spec=None, seen_tokens=context))
    if model.mtp:
        op = mtp_op(model, plan)
        spec = plan.mtp or AttentionSpec()
        seen = seen_tokens(op, length=context)
        groups.append(LayerGroup(name="MTP layer", spec=spec, seen_tokens=seen))
    return groups


def _layers_text(layers: Sequence[int]) -> str:
    """``layer 3``, ``layers 0-11`` or, where others lie between, ``layers 3, 7, 11``."""
    if len(layers) == 1:
        return f"layer {layers[0]}"
    if layers[-1] - layers[0] + 1 == len(layers):
        return f"layers {layers[0]}-{layers[-1]}"
    shown = ", ".join(map(str, layers[:3]))
    return (
        f"layers {shown}, … {layers[-1]}"
        if len(layers) > 4
        else f"layers {', '.join(map(str, layers))}"
    )


def group_text(group: LayerGroup, *, context: int) -> str:
    """One group for people."""
    from selfdraft.trt_plugins.cached_attention.contract import DEFAULT_SPREAD

    spec = group.spec
    if spec is None:
        return "gated delta net, recurrent state"
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
