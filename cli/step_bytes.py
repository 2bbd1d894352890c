"""Bytes that a decode step of a bundle must read: what achieved bandwidth is counted from."""

from __future__ import annotations

from selfdraft.jetson.planner.geometry import geometry_from_spec
from selfdraft.jetson.planner.reading import attention_of
from selfdraft.jetson.planner.speed import Model, backbone_bytes, draft_bytes
from selfdraft.jetson.planner.storage import cpu_storage, device_storage
from selfdraft.manifest import Manifest


def step_bytes(manifest: Manifest, *, length: int, drafts: int) -> int | None:
    """Of one step with ``drafts`` drafts at ``length`` cached tokens.

    None for sparse bundles: what their rows read depends on the text.
    """
    if manifest.attention is not None:
        return None
    geometry = geometry_from_spec(manifest.model, name=manifest.source.name)
    precision = manifest.precision
    storage = (
        cpu_storage(precision.weights, precision.int4_block)
        if precision.weights != "fp16" and manifest.target == "cpu"
        else device_storage(
            geometry, weights="int4" if precision.weights == "int4" else "fp16", head="fp16"
        )
    )
    attention = attention_of(manifest.model, None, kv=precision.kv)
    model = Model(geometry=geometry, storage=storage, attention=attention)
    read = backbone_bytes(model, length=length, rows=drafts + 1)
    return read + drafts * draft_bytes(model, length=length) if drafts else read
