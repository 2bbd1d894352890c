"""Bytes that a decode step of a bundle must read: what achieved bandwidth is counted from."""

from __future__ import annotations

from dataclasses import replace

from selfdraft.jetson.planner.geometry import geometry_from_spec
from selfdraft.jetson.planner.reading import attention_of
from selfdraft.jetson.planner.speed import Model, backbone_bytes, draft_bytes
from selfdraft.jetson.planner.storage import stored_as
from selfdraft.manifest import Manifest, MatrixType, Precision


def step_bytes(manifest: Manifest, *, length: int, drafts: int) -> int | None:
    """Of one step with ``drafts`` drafts at ``length`` cached tokens.

    None for sparse bundles: what their rows read depends on the text.
    """
    if manifest.attention is not None:
        return None
    geometry = geometry_from_spec(manifest.model, name=manifest.source.name)
    precision = manifest.precision
    read_as = _as_read(precision) if manifest.target == "cpu" else precision
    storage = stored_as(read_as, target=manifest.target)
    attention = attention_of(manifest.model, None, kv=precision.kv)
    model = Model(geometry=geometry, storage=storage, attention=attention)
    read = backbone_bytes(model, length=length, rows=drafts + 1)
    return read + drafts * draft_bytes(model, length=length) if drafts else read


def _as_read(precision: Precision) -> Precision:
    """ONNX Runtime widens 16-bit matrices when it opens a graph: a step reads them in fp32."""

    def widened(kind: MatrixType) -> MatrixType:
        return "fp32" if kind in ("fp16", "bf16") else kind

    return replace(
        precision,
        weights="int4" if precision.weights == "int4" else "fp32",
        lm_head=widened(precision.lm_head),
        mtp=widened(precision.mtp),
    )
