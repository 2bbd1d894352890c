"""A plan for people: account, table by context length, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfdraft.cli.console import bytes_text, say, table
from selfdraft.cli.plan_record import BASIS
from selfdraft.jetson.planner.plan import Choices, ContextRow, Remedy

if TYPE_CHECKING:
    from selfdraft.cli.planned_model import PlannedModel
    from selfdraft.cli.planned_target import PlannedTarget

NOTICED = 0.98
"""Speeds in two modes that differ by less are not worth a line."""
MARKS = {"exact": "", "estimate": "≈ ", "measured": ""}


def print_plan(
    model: PlannedModel,
    board: PlannedTarget,
    choices: Choices,
    rows: list[ContextRow],
    found: tuple[Remedy, ...],
) -> None:
    """Print everything; the last row is the context asked for."""
    say(_head(model, board, choices))
    say(f"\nmemory at {rows[-1].context} tokens")
    say(table(_account(rows[-1])))
    say("\nby context length (≈ estimates)")
    say(_lengths(rows, choices))
    say(_default_mode(model, board, choices, rows[-1]))
    if found:
        say("\nwhat would help (head room, room to build)")
        say(table([_remedy(remedy) for remedy in found]))
    say(f"\n{BASIS}")


def _head(model: PlannedModel, board: PlannedTarget, choices: Choices) -> str:
    storage = f"weights {choices.weights}, LM head {choices.head}, KV {choices.kv}"
    clocks = board.target.clocks
    reached = board.target.efficiencies.gb_per_s(clocks)
    return (
        f"{model.geometry.name} on {board.module.title}, {board.mode.name}: {storage}\n"
        f"memory {clocks.bandwidth_gb_s:.0f} GB/s (≈ {reached:.0f} reached), "
        f"GPU {clocks.gpu_mhz:.0f} MHz, {clocks.num_sms} SMs"
    )


def _account(row: ContextRow) -> list[tuple[str, str, str]]:
    memory = row.memory
    lines = [
        (f"  {part.name}", f"{MARKS[part.source]}{bytes_text(part.num_bytes)}", part.reason)
        for part in memory.parts
    ]
    free = f"{MARKS[memory.available_source]}{bytes_text(memory.available_bytes)}"
    lines += [
        ("  in all", f"≈ {bytes_text(memory.total_bytes)}", ""),
        ("  available", free, "5 % of it stay free for fragmentation"),
        ("  head room", f"≈ {_signed(memory.head_room_bytes)}", ""),
        ("  engine build", f"≈ {bytes_text(memory.build_peak_bytes)}", "peak, before it runs"),
    ]
    return lines


def _lengths(rows: list[ContextRow], choices: Choices) -> str:
    drafts = choices.workload.drafts
    header = ["context", "KV and states", "head room", "prompt s", "tok/s"]
    header += [f"K={drafts} tok/s", "× plain"] if drafts else []
    has_sparse = any(row.sparse for row in rows)
    header += ["sparse tok/s"] if has_sparse else []
    header += [f"sparse K={drafts}"] if has_sparse and drafts else []
    return table([_length(row, drafts, has_sparse) for row in rows], header=header)


def _length(row: ContextRow, drafts: int, has_sparse: bool) -> list[object]:
    states = ("kv", "summary", "recurrent", "conv", "MTP kv", "MTP summary")
    kept = sum(part.num_bytes for part in row.memory.parts if part.name in states)
    room = row.memory.head_room_bytes
    cells: list[object] = [row.context, bytes_text(kept), _signed(room)]
    cells += [f"{row.speed.prefill_ms / 1e3:.1f}", f"{row.speed.tok_per_s:.1f}"]
    if drafts:
        cells += [_rate(row.speed.speculative_tok_per_s), f"{row.speed.speedup or 0:.2f}"]
    if has_sparse:
        cells.append(_rate(row.sparse.tok_per_s if row.sparse else None))
    if has_sparse and drafts:
        cells.append(_rate(row.sparse.speculative_tok_per_s if row.sparse else None))
    return cells


def _default_mode(
    model: PlannedModel, board: PlannedTarget, choices: Choices, row: ContextRow
) -> str:
    """What the board does as it comes, where that is another mode."""
    from selfdraft.cli.planned_target import target_in
    from selfdraft.jetson.planner.plan import model_of, speed

    mode = board.default_mode
    target = target_in(board.module, mode, available_gib=None)
    planned = model_of(model.spec, model.geometry, choices)
    own = speed(planned, choices, target, length=row.context)
    if own.tok_per_s > NOTICED * row.speed.tok_per_s:
        return ""
    return (
        f"\nafter flashing the board is in {mode.name}: ≈ {own.tok_per_s:.1f} tok/s there; "
        f"change it with: sudo nvpmodel -m {board.mode.id}"
    )


def _remedy(remedy: Remedy) -> tuple[str, str, str, str]:
    rooms = (_signed(remedy.head_room_bytes), _signed(remedy.build_room_bytes))
    return (f"  {remedy.change}", *rooms, "fits" if remedy.fits else "not enough alone")


def _signed(count: int) -> str:
    return f"-{bytes_text(-count)}" if count < 0 else bytes_text(count)


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
