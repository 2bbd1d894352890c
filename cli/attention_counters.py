"""What attention read over some replies, as plain values and as a few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfdraft.runtime.result import GenerationResult


def attention_facts(results: Sequence[GenerationResult]) -> dict[str, Any]:
    """Counters of all ``results`` together (at least one); share ``None`` where all is dense."""
    records = [result.attention for result in results]
    read = sum(record.blocks_read for record in records)
    in_use = sum(record.blocks_in_use for record in records)
    return {
        "mode": records[-1].mode,
        "steps": sum(record.steps for record in records),
        "rows": sum(record.rows for record in records),
        "blocks_read": read,
        "blocks_in_use": in_use,
        "share": read / in_use if in_use else None,
    }


def attention_text(results: Sequence[GenerationResult]) -> str:
    """``sparse, 31 % of the blocks read``; empty for dense attention and before any step."""
    facts = attention_facts(results)
    if facts["share"] is None:
        return ""
    covered = ": the budget covers all tokens so far" if facts["share"] == 1 else ""
    return f"{facts['mode']}, {facts['share']:.0%} of the blocks read{covered}".replace("%", " %")


def audit_text(results: Sequence[GenerationResult]) -> str:
    """The steps compared with dense attention in a few words; empty without any."""
    points = [point for result in results for point in result.audit]
    if not points:
        return ""
    read = sum(point.blocks_read for point in points)
    in_use = sum(point.blocks_in_use for point in points)
    active = f"{read} of {in_use} blocks read" if read < in_use else "nothing was left out"
    same = sum(point.same_top for point in points)
    mean = sum(point.kl for point in points) / len(points)
    return (
        f"audited {len(points)} steps: mean KL to dense {mean:.2e} nats, "
        f"same likeliest token in {same}, {active}"
    )
