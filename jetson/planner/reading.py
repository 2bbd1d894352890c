"""What the attention layers keep and read: KV, scales and summaries, from their contract."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from selfdraft.jetson.planner.geometry import Geometry
from selfdraft.manifest import BLOCK_TOKENS, AttentionPlan, AttentionSpec, ModelSpec, capacity_for
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention, KvDtype
from selfdraft.trt_plugins.cached_attention.coverage import seen_tokens
from selfdraft.trt_plugins.cached_attention.from_manifest import layer_ops, mtp_op

KV_BYTES = {"fp32": 4, "fp16": 2, "int8": 1}
SCALE_BYTES = 2
SUMMARY_BYTES = 2
SHARED_ROWS = 0.9
"""Share of its blocks that each further row of a step has in common with those before it; the
long-context benchmark measured 0.89 to 0.92 with correlated rows (docs/benchmarks.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """The layers' attention ops, backbone and MTP."""

    layers: tuple[CachedAttention, ...]
    mtp: tuple[CachedAttention, ...]


def attention_of(spec: ModelSpec, plan: AttentionPlan | None, *, kv: KvDtype) -> Attention:
    """Every layer of a model by its plan; None: dense."""
    return Attention(
        layers=layer_ops(spec, plan, kv_dtype=kv),
        mtp=(mtp_op(spec, plan, kv_dtype=kv),) if spec.mtp else (),
    )


def dense_attention(geometry: Geometry, *, kv: KvDtype) -> Attention:
    """Dense layers for a model that is known by its sizes alone."""
    op = CachedAttention(
        num_heads=geometry.num_heads,
        num_kv_heads=geometry.num_kv_heads,
        head_dim=geometry.head_dim,
        scale=geometry.head_dim**-0.5,
        kv_dtype=kv,
    )
    mtp = (op,) if geometry.mtp else ()
    return Attention(layers=(op,) * geometry.num_attention_layers, mtp=mtp)


def sparse_plan(spec: ModelSpec, *, budget_tokens: int) -> AttentionPlan:
    """The exporter's default selection with another budget; the MTP layer sees a window."""
    layer = AttentionSpec(selector="mean_std", local_blocks=8, budget_tokens=budget_tokens)
    window = AttentionSpec(
        selector="window", local_blocks=17, budget_tokens=0, sliding_window=16 * BLOCK_TOKENS
    )
    return AttentionPlan(layers=(layer,) * spec.num_layers, mtp=window if spec.mtp else None)


def state_bytes(ops: Sequence[CachedAttention], *, context: int, batch: int) -> dict[str, int]:
    """Bytes kept for ``batch`` sequences of ``context`` tokens: kv (scales included), summary."""
    capacity = capacity_for(context)
    kept = {"kv": 0, "summary": 0}
    for op in ops:
        row = 2 * op.head_dim * KV_BYTES[op.kv_dtype]
        row += 2 * SCALE_BYTES if op.kv_dtype == "int8" else 0
        kept["kv"] += batch * op.num_kv_heads * capacity * row
        blocks = capacity // op.block * op.num_kv_heads * op.summary_vectors * op.head_dim
        kept["summary"] += batch * blocks * SUMMARY_BYTES
    return {kind: size for kind, size in kept.items() if size}


def read_bytes(ops: Sequence[CachedAttention], *, length: int, rows: int) -> int:
    """Bytes that one step of ``rows`` rows reads of KV and summaries at ``length`` tokens."""
    return sum(_layer_reads(op, length, rows) for op in ops) if length else 0


def _layer_reads(op: CachedAttention, length: int, rows: int) -> int:
    seen = seen_tokens(op, length=length)
    row = 2 * op.head_dim * KV_BYTES[op.kv_dtype]
    row += 2 * SCALE_BYTES if op.kv_dtype == "int8" else 0
    # Rows that choose other blocks read those as well, up to the whole context.
    union = min(length, math.ceil(seen * (1 + (rows - 1) * (1 - SHARED_ROWS))))
    tokens = length if seen >= length else union
    # Dense steps, and those that the budget covers, score nothing.
    scored = math.ceil(length / op.block) if tokens < length else 0
    vectors = scored * op.summary_vectors * op.head_dim
    return op.num_kv_heads * (tokens * row + vectors * SUMMARY_BYTES)
