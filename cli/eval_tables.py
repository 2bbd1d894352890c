"""Evaluations as plain values, and as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from selfdraft.cli.console import table
from selfdraft.cli.eval_acceptance import Bucket
from selfdraft.cli.eval_run import Cell
from selfdraft.cli.reply import ordinal

TELLING_SCORE = 0.5
"""Below that dense score a comparison is mostly of wrong answers."""


def record_of(parts: Sequence[Cell] | Sequence[Bucket]) -> dict[str, Any]:
    """Every cell or bucket with its derived figures, and the totals of cells."""
    cells = [part for part in parts if isinstance(part, Cell)]
    if cells:
        return {
            "cells": [{**asdict(cell), "share": cell.share} for cell in cells],
            "by_length": [_total(cells, length=length) for length in _lengths(cells)],
            **_total(cells),
            "notes": notes_of(cells),
        }
    buckets = [part for part in parts if isinstance(part, Bucket)]
    return {
        "buckets": [
            {**asdict(b), "acceptance": b.acceptance, "tokens_per_step": b.tokens_per_step}
            for b in buckets
        ]
    }


def cells_text(cells: Sequence[Cell]) -> str:
    """A grid for each task (lengths by depths), then the totals; scores sparse/dense in percent."""
    parts = []
    for task in dict.fromkeys(cell.task for cell in cells):
        own = [cell for cell in cells if cell.task == task]
        depths = list(dict.fromkeys(cell.depth for cell in own))
        names = ["" if depth is None else f"depth {depth:g}" for depth in depths]
        rows = [
            [length, *(_score(c) for depth in depths for c in own if _at(c, length, depth))]
            for length in _lengths(own)
        ]
        parts.append(f"{task}\n{table(rows, header=['  tokens', *names])}")
    totals = [_total(cells, length=length) for length in _lengths(cells)]
    rows = [[total["length"], *_total_row(total)] for total in totals]
    header = ("  tokens", "dense", "sparse", "lost points", "blocks read")
    parts.append(f"all tasks\n{table(rows, header=header)}")
    if cells[0].sparse is not None:
        parts.append("scores are sparse/dense in percent, both from this run")
    parts += [f"note: {note}" for note in notes_of(cells)]
    return "\n\n".join(parts)


def notes_of(cells: Sequence[Cell]) -> list[str]:
    """What keeps the scores from saying much about the selection."""
    if cells[0].sparse is None:
        return ["every layer of this bundle is dense, so there is no sparse score"]
    total, notes = _total(cells), []
    if total["dense"] < TELLING_SCORE:
        notes.append(
            f"dense attention answers {total['dense']:.0%} itself, so lost points say little; "
            "give shorter --lengths, or a --wording that the model knows (demo for the demo model)"
        )
    if total["share"] == 1:
        notes.append("the budget covers these lengths, so nothing was left out; give longer ones")
    return notes


def acceptance_text(buckets: Sequence[Bucket]) -> str:
    """A line for each bucket of positions."""
    rows = []
    for bucket in buckets:
        shares = ["–" if share is None else f"{share:.1%}" for share in bucket.acceptance]
        read = bucket.attention["share"]
        rows.append(
            [
                f"{bucket.start}–{bucket.end - 1}",
                bucket.steps,
                f"{bucket.tokens_per_step or 0:.2f}",
                *shares,
                "dense" if read is None else f"{read:.1%}",
            ]
        )
    names = [ordinal(i) for i in range(1, len(buckets[0].drafted) + 1)]
    return table(rows, header=["positions", "steps", "tok/step", *names, "blocks read"])


def _total(cells: Sequence[Cell], *, length: int | None = None) -> dict[str, Any]:
    own = [cell for cell in cells if length is None or cell.length == length]
    trials = sum(cell.trials for cell in own)
    dense = sum(cell.dense * cell.trials for cell in own) / trials
    scores = [cell.sparse * cell.trials for cell in own if cell.sparse is not None]
    sparse = sum(scores) / trials if scores else None
    in_use = sum(cell.blocks_in_use for cell in own)
    return {
        "length": length,
        "trials": trials,
        "dense": dense,
        "sparse": sparse,
        "lost_points": None if sparse is None else 100 * (dense - sparse),
        "share": sum(cell.blocks_read for cell in own) / in_use if in_use else None,
    }


def _total_row(total: dict[str, Any]) -> list[str]:
    if total["sparse"] is None:
        return [f"{total['dense']:.1%}", "–", "–", "–"]
    lost = f"{total['lost_points']:.1f}"
    return [f"{total['dense']:.1%}", f"{total['sparse']:.1%}", lost, f"{total['share']:.1%}"]


def _lengths(cells: Sequence[Cell]) -> list[int]:
    return list(dict.fromkeys(cell.length for cell in cells))


def _at(cell: Cell, length: int, depth: float | None) -> bool:
    return cell.length == length and cell.depth == depth


def _score(cell: Cell) -> str:
    sparse = "–" if cell.sparse is None else f"{100 * cell.sparse:.0f}"
    return f"{sparse}/{100 * cell.dense:.0f}"
