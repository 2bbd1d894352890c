"""``selfdraft bench compare A B``: the same series in two files, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfdraft.cli.bench_schema import BenchLine, read_lines
from selfdraft.cli.console import note, print_json, say, table
from selfdraft.errors import ConfigError

SCHEMA = "selfdraft.bench-compare/1"
SETTINGS = (
    "selfdraft",
    "git_commit",
    "onnxruntime",
    "tensorrt",
    "l4t",
    "device",
    "cpu",
    "power_mode",
    "clocks_locked",
    "bundle_sha256",
    "backend",
    "threads",
    "tokens",
    "prompt_source",
)
"""What may differ and explain a difference."""
HEADER = ("context", "drafts", "A tok/s", "B tok/s", "B by A", "B by A, step", "verdict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One series in both files."""

    first: BenchLine
    second: BenchLine

    @property
    def ratio(self) -> float:
        """Tokens per second, second by first."""
        return self.second.tok_per_s.median / self.first.tok_per_s.median

    @property
    def step_ratio(self) -> float:
        """Step time, second by first."""
        return self.second.step_ms.median / self.first.step_ms.median

    @property
    def verdict(self) -> str:
        """``faster`` or ``slower`` only where the ranges from p10 to p90 of the steps are apart."""
        a, b = self.first.step_ms, self.second.step_ms
        if not (self.first.valid is not False and self.second.valid is not False):
            return "invalid"
        if a.p10 <= b.p90 and b.p10 <= a.p90:
            return "within the spread"
        return "faster" if self.ratio > 1 else "slower"


def print_comparison(files: Sequence[Path], *, as_json: bool) -> None:
    """Print pairs, and what else differs. Raises ``ConfigError``."""
    if len(files) != 2:
        raise ConfigError(
            f"compare takes two files, {len(files)} are given",
            hint="selfdraft bench compare before.jsonl after.jsonl",
        )
    first, second = (read_lines(path) for path in files)
    pairs = paired(first, second)
    changed = differences(first[0], second[0])
    if as_json:
        print_json({"schema": SCHEMA, "pairs": [_record(p) for p in pairs], "differs": changed})
        return
    say(table([_row(pair) for pair in pairs], header=HEADER))
    for name, (a, b) in changed.items():
        say(f"{name}: {a} against {b}")
    for side, lines in (("A", first), ("B", second)):
        reasons = {reason for line in lines for reason in line.invalid_reasons or ()}
        for reason in sorted(reasons):
            note(f"{side} is invalid: {reason}")


def paired(first: Sequence[BenchLine], second: Sequence[BenchLine]) -> list[Pair]:
    """Series of the same context, drafts and forced acceptance. Raises ``ConfigError`` for none."""
    others = {_key(line): line for line in second}
    pairs = [Pair(first=line, second=others[_key(line)]) for line in first if _key(line) in others]
    if not pairs:
        raise ConfigError(
            "the files have no series in common",
            hint="measure with the same --context, --drafts and --force-acceptance",
        )
    return pairs


def differences(first: BenchLine, second: BenchLine) -> dict[str, tuple[Any, Any]]:
    """Settings that are not the same in both."""
    both = {name: (getattr(first, name), getattr(second, name)) for name in SETTINGS}
    return {name: (a, b) for name, (a, b) in both.items() if a != b}


def _key(line: BenchLine) -> tuple[object, ...]:
    return line.context, line.drafts, line.forced_acceptance


def _record(pair: Pair) -> dict[str, Any]:
    return {
        "context": pair.first.context,
        "drafts": pair.first.drafts,
        "tok_per_s": [pair.first.tok_per_s.median, pair.second.tok_per_s.median],
        "step_ms": [pair.first.step_ms.median, pair.second.step_ms.median],
        "ratio": pair.ratio,
        "step_ratio": pair.step_ratio,
        "verdict": pair.verdict,
    }


def _row(pair: Pair) -> tuple[object, ...]:
    return (
        pair.first.context,
        pair.first.drafts,
        f"{pair.first.tok_per_s.median:.1f}",
        f"{pair.second.tok_per_s.median:.1f}",
        f"{pair.ratio:.3f}",
        f"{pair.step_ratio:.3f}",
        pair.verdict,
    )
