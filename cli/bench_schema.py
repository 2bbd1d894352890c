"""A line of ``selfdraft bench --json`` as a record: what writes one and what reads one agree on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfdraft.cli.text_files import read_utf8
from selfdraft.errors import ConfigError
from selfdraft.strict import StrictError, record_from_json

SCHEMA = "selfdraft.bench/2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median with the 10th and 90th percentile."""

    median: float
    p10: float
    p90: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Drafts verified and accepted at one position (1, 2, …)."""

    position: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchLine:
    """One series: a context and a number of drafts. ``None``: not measured, or not there.

    Units stand in the names. ``acceptance`` is unconditional: a draft counts when all before it
    were accepted too. ``valid`` is null where no board was watched.
    """

    schema: str
    time: str
    selfdraft: str
    git_commit: str | None
    git_dirty: bool | None
    python: str
    numpy: str | None
    onnxruntime: str | None
    tensorrt: str | None
    cuda: str | None
    l4t: str | None
    device: str | None
    cpu: str | None
    cores: int | None
    platform: str
    power_mode: str | None
    asked_mode: str | None
    clocks_locked: bool | None
    bundle: str
    bundle_sha256: str
    model: str
    weights: str
    backend: str
    threads: int | None
    context: int
    drafts: int
    tokens: int
    prompt_source: str
    warmup: int
    warmup_s: float
    repeats: int
    synthetic: bool
    forced_acceptance: tuple[float, ...] | None
    steps: int
    step_ms: Spread
    engine_ms: Spread
    loop_overhead_us: Spread
    tok_per_s: Spread
    speedup: float
    tokens_per_step: float
    acceptance: tuple[Acceptance, ...]
    attention: dict[str, Any] | None
    prefill_tok_per_s: float | None
    ttft_ms: float | None
    state_bytes: int
    peak_rss_bytes: int | None
    bytes_per_step: int | None
    gb_per_s: float | None
    roofline_share: float | None
    watts: float | None
    joules_per_token: float | None
    temperature_c: float | None
    gpu_mhz: Spread | None
    emc_mhz: Spread | None
    peak_ram_bytes: int | None
    valid: bool | None
    invalid_reasons: tuple[str, ...] | None

    @property
    def accepted_shares(self) -> tuple[float | None, ...]:
        """Accepted by drafted at each position."""
        return tuple(a.accepted / a.drafted if a.drafted else None for a in self.acceptance)


def read_lines(path: Path) -> tuple[BenchLine, ...]:
    """The lines of a file. Raises ``ConfigError`` naming the line and the field that is wrong."""
    lines = read_utf8(path, hint="give another file").split("\n")
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise ConfigError(f"{path} is empty", hint=f"selfdraft bench BUNDLE --json > {path}")
    return tuple(_line(path, number, text) for number, text in enumerate(texts, start=1))


def _line(path: Path, number: int, text: str) -> BenchLine:
    try:
        data = json.loads(text)
        found = data.get("schema") if isinstance(data, dict) else None
        if isinstance(found, str) and _kind(found) != _kind(SCHEMA):
            raise ConfigError(
                f"{path}, line {number} is a record of {_kind(found)}, not of {_kind(SCHEMA)}",
                hint="give what selfdraft bench BUNDLE --json prints, without serve and --attention",
            )
        if found != SCHEMA:
            raise StrictError(f"schema {found!r}, expected {SCHEMA!r}")
        return record_from_json(BenchLine, data, where="line")
    except ValueError as error:
        raise ConfigError(
            f"{path}, line {number}: {error}",
            hint="measure again with this selfdraft: selfdraft bench BUNDLE --json",
        ) from None


def _kind(schema: str) -> str:
    """A schema without its version."""
    return schema.partition("/")[0]
