"""A series over a filled cache as one JSON line, and as a row for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfdraft.cli.measure import spread
from selfdraft.cli.measure_filled import FilledOptions, FilledResult, FilledSeries
from selfdraft.manifest import Manifest
from selfdraft.runtime.memory import peak_rss_bytes
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.cached_attention.from_manifest import layer_ops

SCHEMA = "selfdraft.bench-attention/1"
HEADER = (
    "context",
    "attention",
    "drafts",
    "step ms",
    "p10",
    "p90",
    "attention %",
    "read MiB",
    "blocks",
    "overlap %",
    "tok/s",
    "× dense",
    "× shortest",
)
KV_BYTES = {"fp32": 4, "fp16": 2, "int8": 1}
SCALE_BYTES = 2
SUMMARY_BYTES = 2


def filled_records(
    result: FilledResult, options: FilledOptions, manifest: Manifest, *, head: dict[str, Any]
) -> list[dict[str, Any]]:
    """One record a series."""
    return [_record(entry, result, options, manifest, head=head) for entry in result.measured]


def _record(
    entry: FilledSeries,
    result: FilledResult,
    options: FilledOptions,
    manifest: Manifest,
    *,
    head: dict[str, Any],
) -> dict[str, Any]:
    series, drafts = entry.series, entry.series.drafts
    dense = _find(result, context=entry.context, attention="dense", drafts=drafts)
    first = _find(result, context=min(options.contexts), attention=entry.attention, drafts=drafts)
    plain = _find(result, context=entry.context, attention=entry.attention, drafts=0)
    assert first is not None and plain is not None
    base_ms = result.base[drafts].step_ms
    return {
        "schema": SCHEMA,
        **head,
        "context": entry.context,
        "attention": entry.attention,
        "drafts": drafts,
        "tokens": options.tokens,
        "warmup": options.warmup,
        "repeats": options.repeats,
        "synthetic": True,
        "content": options.content.described(),
        "forced_acceptance": options.forced_acceptance if drafts else None,
        "steps": len(series.step_s),
        "step_ms": spread(series.step_s, scale=1e3),
        "engine_ms": spread(series.engine_s, scale=1e3),
        "base_step_ms": base_ms,
        "attention_share": max(1 - base_ms / entry.step_ms, 0.0),
        "blocks_in_use": _blocks_in_use(entry),
        "blocks_read": entry.blocks_read,
        "row_overlap": row_overlap(entry, plain),
        "bytes_read": bytes_read(manifest, entry),
        "tokens_per_step": series.tokens_per_step,
        "tok_per_s": spread(series.tok_per_s),
        "speedup_over_plain": plain.step_ms / entry.step_ms * series.tokens_per_step,
        "dense_by_this": dense.step_ms / entry.step_ms if dense else None,
        "this_by_shortest": entry.step_ms / first.step_ms,
        "state_bytes": series.results[-1].state_bytes,
        "peak_rss_bytes": peak_rss_bytes(),
    }


def filled_row(record: dict[str, Any]) -> tuple[object, ...]:
    """The record under ``HEADER``."""
    step, blocks, overlap = record["step_ms"], record["blocks_read"], record["row_overlap"]
    read = max(blocks) if blocks else record["blocks_in_use"]
    dense = record["dense_by_this"]
    return (
        record["context"],
        record["attention"],
        record["drafts"],
        f"{step['median']:.3f}",
        f"{step['p10']:.3f}",
        f"{step['p90']:.3f}",
        f"{100 * record['attention_share']:.0f}",
        f"{sum(record['bytes_read'].values()) / 2**20:.1f}",
        f"{read}/{record['blocks_in_use']}",
        "" if overlap is None else f"{100 * overlap:.0f}",
        f"{record['tok_per_s']['median']:.1f}",
        "" if dense is None else f"{dense:.2f}",
        f"{record['this_by_shortest']:.2f}",
    )


def bytes_read(manifest: Manifest, entry: FilledSeries) -> dict[str, int]:
    """Bytes of the backbone's states that a step reads, by kind, from what its layers counted.

    A block counts once however many rows see it. The counter is that of the kv head that read
    most, so this is at most a little too much.
    """
    ops = layer_ops(manifest.model, manifest.attention, kv_dtype=manifest.precision.kv)
    counted = iter(entry.blocks_read)
    total = {"kv": 0, "scales": 0, "summaries": 0}
    for op in ops:
        read = _blocks_in_use(entry) if op.selector == "all" else next(counted)
        for kind, size in _layer_bytes(op, entry, read).items():
            total[kind] += size
    return total


def _layer_bytes(op: CachedAttention, entry: FilledSeries, read: int) -> dict[str, int]:
    in_use = _blocks_in_use(entry)
    rows = min(read * op.block, entry.context) * op.num_kv_heads
    # Dense steps, and those that the budget covers, score nothing.
    scored = in_use if read < in_use else 0
    vectors = op.num_kv_heads * op.summary_vectors * op.head_dim
    return {
        "kv": 2 * rows * op.head_dim * KV_BYTES[op.kv_dtype],
        "scales": 2 * rows * SCALE_BYTES if op.kv_dtype == "int8" else 0,
        "summaries": scored * vectors * SUMMARY_BYTES,
    }


def row_overlap(entry: FilledSeries, plain: FilledSeries) -> float | None:
    """Share of its blocks that each further row of a step has in common with those before it.

    From the union that the rows of a step read against what one row reads (medians, all sparse
    layers): 1 when they see the same, 0 when they share nothing. None without drafts.
    """
    drafts = entry.series.drafts
    if not drafts or not entry.has_blocks or entry.attention == "dense":
        return None
    added = sum(entry.blocks_read) / sum(plain.blocks_read) - 1
    return 1 - added / drafts


def _blocks_in_use(entry: FilledSeries) -> int:
    return -(-entry.context // 64)


def _find(
    result: FilledResult, *, context: int, attention: str, drafts: int
) -> FilledSeries | None:
    wanted = (context, attention, drafts)
    found: Sequence[FilledSeries] = [
        entry
        for entry in result.measured
        if (entry.context, entry.attention, entry.series.drafts) == wanted
    ]
    return found[0] if found else None
