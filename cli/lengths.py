"""``selfdraft lengths``: how long replies are, and how many break a hard limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfdraft.cli.options import JsonOption

if TYPE_CHECKING:
    from selfdraft.cli.length_records import SavedGeneration
    from selfdraft.cli.length_stats import LengthStats, Pairing
    from selfdraft.manifest import Manifest
    from selfdraft.runtime.thinking_record import ThinkingRate

SCHEMA = "selfdraft.lengths/1"


def command(
    first: Annotated[
        Path,
        typer.Argument(
            metavar="A",
            help="File of generations, as generate --json and chat --json write; - is stdin.",
            show_default=False,
        ),
    ],
    second: Annotated[
        Path | None,
        typer.Argument(metavar="[B]", help="A second file to compare.", show_default=False),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", min=1, metavar="N", help="L_max: a longer reply has reward zero in DLER."
        ),
    ] = 4000,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            metavar="BUNDLE",
            help="Bundle whose caches are counted.",
            show_default="the one named in each file",
        ),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Statistics over the lengths of replies: one file, or one against another.

    Share of replies beyond a hard limit (where DLER gives no reward), lengths, paragraphs and how
    unequal they are, the memory that the longest one needs, acceptance, and thinking budgets kept.

    \b
    Examples:
      selfdraft generate BUNDLE "Why?" --json >> a.jsonl
      selfdraft lengths a.jsonl --limit 2000
      selfdraft lengths before.jsonl after.jsonl --json
    """
    from selfdraft.cli.console import print_json, say
    from selfdraft.cli.length_records import read_generations
    from selfdraft.cli.length_stats import length_stats, pairing
    from selfdraft.runtime.thinking_record import thinking_rates

    files = [first] if second is None else [first, second]
    read = [read_generations(path) for path in files]
    stats = [
        length_stats(own, limit=limit, manifest=_manifest(bundle, own, path))
        for path, own in zip(files, read, strict=True)
    ]
    rates = [thinking_rates(g.thinking for g in own if g.thinking) for own in read]
    pairs = pairing(*read) if len(read) == 2 else None
    if json_output:
        print_json(_record(files, stats, rates, pairs))
    else:
        parts = [_text(files, stats), *_rates_text(files, rates)]
        say("\n\n".join([*parts, *([_pairs_text(pairs)] if pairs else [])]))


def _manifest(
    bundle: Path | None, generations: list[SavedGeneration], path: Path
) -> Manifest | None:
    """The manifest whose states are counted; None, and a note, where no file names a usable one."""
    from selfdraft.cli.console import note
    from selfdraft.errors import BundleError
    from selfdraft.manifest import load_manifest

    if bundle is not None:
        return load_manifest(bundle)
    names = {generation.bundle for generation in generations}
    if len(names) > 1:
        note(f"note: {path} mixes {len(names)} bundles; --bundle says whose caches to count")
        return None
    (name,) = names
    try:
        return load_manifest(Path(name))
    except BundleError as error:
        note(f"note: no bytes of caches for {path}: {error.problem} (--bundle names the bundle)")
        return None


def _record(
    files: list[Path],
    stats: list[LengthStats],
    rates: list[list[ThinkingRate]],
    pairs: Pairing | None,
) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "schema": SCHEMA,
        "files": [
            {
                "file": str(path),
                **asdict(own),
                "beyond_share": own.beyond_share,
                "cut_off_share": own.cut_off_share,
                "acceptance_rate": own.acceptance_rate,
                "thinking": [
                    asdict(rate)
                    | {"trigger_rate": rate.trigger_rate, "violation_rate": rate.violation_rate}
                    for rate in levels
                ],
            }
            for path, own, levels in zip(files, stats, rates, strict=True)
        ],
        "pairs": asdict(pairs) if pairs else None,
    }


def _text(files: list[Path], stats: list[LengthStats]) -> str:
    from selfdraft.cli.console import bytes_text, table

    limit = stats[0].limit
    rows: list[list[str]] = [
        ["replies", *(str(s.replies) for s in stats)],
        [f"beyond {limit} tokens", *(f"{s.beyond_share:.1%} ({s.beyond})" for s in stats)],
        ["cut off at a limit", *(f"{s.cut_off_share:.1%} ({s.cut_off})" for s in stats)],
        ["mean tokens", *(f"{s.mean_tokens:.1f}" for s in stats)],
        ["median tokens", *(f"{s.median_tokens:g}" for s in stats)],
        ["90 % are up to", *(str(s.p90_tokens) for s in stats)],
        ["longest", *(str(s.max_tokens) for s in stats)],
        ["mean steps", *(f"{s.mean_steps:.2f}" for s in stats)],
        ["characters a step", *(_number(s.mean_step_chars, ".1f") for s in stats)],
        ["spread of steps", *(_number(s.step_spread, ".2f") for s in stats)],
        ["peak tokens", *(str(s.peak_tokens) for s in stats)],
        [
            "KV peak",
            *("–" if s.kv_peak_bytes is None else bytes_text(s.kv_peak_bytes) for s in stats),
        ],
        ["acceptance", *(_number(s.acceptance_rate, ".1%") for s in stats)],
    ]
    if len(stats) == 2:
        changes = _changes(stats[0], stats[1])
        rows = [[*row, changes.get(row[0], "")] for row in rows]
    header = ["", *map(str, files), *(["change"] if len(stats) == 2 else [])]
    return table(rows, header=header)


def _rates_text(files: list[Path], rates: list[list[ThinkingRate]]) -> list[str]:
    """A table of thinking budgets, where any reply had one."""
    from selfdraft.cli.console import table

    rows = [
        [
            str(path),
            rate.budget,
            rate.temperature,
            rate.replies,
            f"{rate.trigger_rate:.1%}",
            f"{rate.violation_rate:.1%}",
        ]
        for path, levels in zip(files, rates, strict=True)
        for rate in levels
    ]
    header = ("", "budget", "temperature", "replies", "triggered", "violated")
    return [table(rows, header=header)] if rows else []


def _changes(first: LengthStats, second: LengthStats) -> dict[str, str]:
    """The second file against the first: points of a share, else percent."""
    changes = {
        f"beyond {first.limit} tokens": _points(first.beyond_share, second.beyond_share),
        "cut off at a limit": _points(first.cut_off_share, second.cut_off_share),
        "acceptance": _points(first.acceptance_rate, second.acceptance_rate),
    }
    for label, name in (
        ("mean tokens", "mean_tokens"),
        ("median tokens", "median_tokens"),
        ("90 % are up to", "p90_tokens"),
        ("longest", "max_tokens"),
        ("mean steps", "mean_steps"),
        ("characters a step", "mean_step_chars"),
        ("spread of steps", "step_spread"),
        ("peak tokens", "peak_tokens"),
        ("KV peak", "kv_peak_bytes"),
    ):
        before, after = getattr(first, name), getattr(second, name)
        changes[label] = f"{after / before - 1:+.1%}" if before and after is not None else ""
    return changes


def _points(before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return ""
    return f"{100 * (after - before):+.1f} points"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _pairs_text(pairs: Pairing) -> str:
    if pairs.mean_ratio is None:
        return "no prompt is in both files"
    return (
        f"{pairs.prompts} prompts in both: replies of the second file are shorter for "
        f"{pairs.shorter}, {pairs.mean_ratio:.2f} times as long on average"
    )
