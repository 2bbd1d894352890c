"""Whole lines of ``selfdraft bench --json``, made up."""

from __future__ import annotations

import json
from typing import Any

from selfdraft.cli.bench_schema import SCHEMA


def spread(value: float, width: float = 0.0) -> dict[str, float]:
    return {"median": value, "p10": value - width, "p90": value + width}


def bench_line(drafts: int = 0, speed: float = 20.0, **changes: Any) -> dict[str, Any]:
    """A line with every field, of a PC unless ``changes`` say otherwise."""
    line: dict[str, Any] = {
        "schema": SCHEMA,
        "time": "2026-11-29T00:00:00+00:00",
        "selfdraft": "0.1.0",
        **dict.fromkeys(("git_commit", "git_dirty", "numpy", "onnxruntime", "tensorrt", "cuda")),
        **dict.fromkeys(("l4t", "device", "cpu", "cores", "power_mode", "asked_mode")),
        **dict.fromkeys(("clocks_locked", "threads", "forced_acceptance", "attention")),
        **dict.fromkeys(("prefill_tok_per_s", "ttft_ms", "peak_rss_bytes", "bytes_per_step")),
        **dict.fromkeys(("gb_per_s", "roofline_share", "watts", "joules_per_token")),
        **dict.fromkeys(("temperature_c", "gpu_mhz", "emc_mhz", "peak_ram_bytes", "valid")),
        "invalid_reasons": None,
        "python": "3.11.2",
        "platform": "Linux",
        "bundle": "b",
        "bundle_sha256": "0" * 64,
        "model": "m",
        "weights": "fp32",
        "backend": "ort",
        "context": 100,
        "drafts": drafts,
        "tokens": 64,
        "prompt_source": "example",
        "warmup": 1,
        "warmup_s": 0.0,
        "repeats": 3,
        "synthetic": False,
        "steps": 10,
        "step_ms": spread(1e3 / speed),
        "engine_ms": spread(900 / speed),
        "loop_overhead_us": spread(100.0),
        "tok_per_s": spread(speed),
        "speedup": 1.0,
        "tokens_per_step": 1.0 + 0.5 * drafts,
        "acceptance": [
            {"position": i, "drafted": 10, "accepted": 10 - 2 * i} for i in range(1, drafts + 1)
        ],
        "state_bytes": 1000,
    }
    assert set(changes) <= set(line), "a field that no line has"
    return {**line, **changes}


def as_lines(*lines: dict[str, Any]) -> str:
    """The lines as a file's text."""
    return "".join(json.dumps(line) + "\n" for line in lines)
