"""A measured load as one JSON line, and as a row for people."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfdraft.cli.environment import bundle_sha256, environment_record
from selfdraft.cli.load.traffic import Point

if TYPE_CHECKING:
    from selfdraft.manifest import Manifest

SCHEMA = "selfdraft.bench-serve/1"
PLAIN = "0"
"""``drafts`` of plain decoding."""
HEADER = (
    "load",
    "drafts",
    "ok",
    "refused",
    "tok/s",
    "× plain",
    "first ms p50",
    "p95",
    "p99",
    "gap ms p50",
    "p95",
    "p99",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the loads of one server share."""

    head: dict[str, Any]
    drafts: str | None
    """A number or ``auto``; None where the server does not say."""

    @classmethod
    def of_bundle(
        cls,
        bundle: Path,
        manifest: Manifest,
        facts: Mapping[str, Any],
        common: Mapping[str, Any],
        *,
        drafts: str,
    ) -> Setting:
        """Of a server started for ``bundle``, which told ``facts``."""
        own = {
            "bundle": str(bundle),
            "bundle_sha256": bundle_sha256(bundle),
            "weights": manifest.precision.weights,
        }
        return cls(head={**_head(facts), **own, **common}, drafts=drafts)

    @classmethod
    def of_server(cls, facts: Mapping[str, Any], common: Mapping[str, Any]) -> Setting:
        """Of a server that ran already."""
        own = {"bundle": None, "bundle_sha256": None, "weights": None}
        return cls(head={**_head(facts), **own, **common}, drafts=None)


def _head(facts: Mapping[str, Any]) -> dict[str, Any]:
    told = ("model", "backend", "threads", "slots", "context_length", "state_bytes")
    return {**environment_record(), **{name: facts.get(name) for name in told}}


def serve_record(point: Point, figures: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    """Everything measured under one load; unmeasured is ``None``."""
    return {
        "schema": SCHEMA,
        **setting.head,
        "drafts": setting.drafts,
        "loop": "open" if point.clients is None else "closed",
        "clients": point.clients,
        "rate": point.rate,
        **figures,
    }


def speedup(record: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> float | None:
    """Throughput by that of plain decoding under the same load: median of the ratios of the rounds.

    ``records`` holds the plain one, if there is any.
    """
    same = ("clients", "rate")
    plain = next(
        (
            one
            for one in records
            if one["drafts"] == PLAIN and all(one[name] == record[name] for name in same)
        ),
        None,
    )
    if plain is None:
        return None
    pairs = zip(record["round_tok_per_s"], plain["round_tok_per_s"], strict=True)
    ratios = [own / base for own, base in pairs if own and base]
    return statistics.median(ratios) if ratios else None


def serve_row(record: Mapping[str, Any]) -> tuple[object, ...]:
    """The record under ``HEADER``."""
    load = load_text(Point(clients=record["clients"], rate=record["rate"]))
    failed = f" ({record['failed']} failed)" if record["failed"] else ""
    return (
        load,
        record["drafts"] or "–",
        f"{record['ok']}{failed}",
        record["refused"],
        _number(record["tok_per_s"]),
        _number(record["speedup"], ".2f"),
        *_times(record["ttft_ms"]),
        *_times(record["inter_token_ms"]),
    )


def load_text(point: Point) -> str:
    """The load in words, e.g. ``4 clients``."""
    if point.clients is None:
        return f"{point.rate:g} requests/s"
    return f"{point.clients} client{'s' if point.clients > 1 else ''}"


def _times(found: Mapping[str, float] | None) -> tuple[str, ...]:
    return tuple(_number(found[name] if found else None) for name in ("p50", "p95", "p99"))


def _number(value: float | None, form: str = ".1f") -> str:
    return "–" if value is None else format(value, form)
