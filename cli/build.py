"""``selfdraft build``: TensorRT engines from a bundle, on the board that is to run them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfdraft.cli.console import bytes_text, note, print_json, say, stage_progress, table
from selfdraft.cli.options import BundleArg, ChunkOption, ContextOption, JsonOption

if TYPE_CHECKING:
    from selfdraft.cli.build_room import BuildRoom
    from selfdraft.runtime.bundle import Bundle
    from selfdraft.runtime.trt.builder import BuildOptions

SCHEMA = "selfdraft.build/1"
MIB = 1 << 20


def command(
    bundle: BundleArg,
    batch: Annotated[
        int, typer.Option("--batch", min=1, metavar="N", help="Sequences at once, at most.")
    ] = 1,
    context: ContextOption = None,
    chunk: ChunkOption = None,
    workspace: Annotated[
        int,
        typer.Option(
            "--workspace", min=1, metavar="MIB", help="Scratch memory of one kernel, at most."
        ),
    ] = 1024,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be built; needs no TensorRT.")
    ] = False,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Delete the graphs' weights afterwards: only these engines can run it then.",
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Build even where memory or disk look too small.")
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Build the engines of a bundle for this device, beside it in the folder engines.

    Memory and disk are checked first, the plugin layers of each engine afterwards. Timings are kept,
    so that building again is quicker.

    \b
    Examples:
      selfdraft build BUNDLE --dry-run
      selfdraft build BUNDLE --context 32768
    """
    from selfdraft.cli.board import board_of
    from selfdraft.cli.build_room import build_room, check_room
    from selfdraft.jetson.probe import probe
    from selfdraft.runtime.bundle import open_bundle
    from selfdraft.runtime.trt.builder import BuildOptions, build_engines, check_target
    from selfdraft.runtime.trt.limits import engine_limits

    opened = open_bundle(bundle)
    check_target(opened)
    device = probe()
    available = device.memory.available_bytes
    room = build_room(opened, available_bytes=available)
    options = BuildOptions(
        limits=engine_limits(
            opened.manifest.limits, batch=batch, context=context, prefill_rows=chunk
        ),
        workspace_bytes=workspace * MIB,
        tactic_bytes=max(available // 2, workspace * MIB),
    )
    record = _record(opened, options, room)
    if chunk is not None and options.limits.prefill_rows > chunk:
        note(
            f"--chunk {chunk} is built as {options.limits.prefill_rows}: passes over a prompt are "
            "padded to that, so that all of its rows are computed alike"
        )
    if dry_run:
        _tell(record, as_json=json_output, lines=[*_plan_lines(opened, options, room)])
        return
    if not force:
        check_room(room)
    with stage_progress(quiet=json_output) as on_stage:
        folder = build_engines(opened, options, board_of(device), on_stage=on_stage)
    pruned = _prune(opened) if prune else []
    record |= {"folder": str(folder), "pruned": pruned}
    _tell(record, as_json=json_output, lines=_built_lines(folder, pruned))


def _record(bundle: Bundle, options: BuildOptions, room: BuildRoom) -> dict[str, Any]:
    nodes = {name: len(graph.plugin_nodes) for name, graph in bundle.manifest.graphs.items()}
    return {
        "schema": SCHEMA,
        "bundle": str(bundle.path),
        "target": bundle.manifest.target,
        "limits": asdict(options.limits),
        "workspace_bytes": options.workspace_bytes,
        "tactic_bytes": options.tactic_bytes,
        "room": asdict(room) | {"fits": room.fits},
        "plugin_nodes": nodes,
    }


def _plan_lines(bundle: Bundle, options: BuildOptions, room: BuildRoom) -> list[str]:
    from selfdraft.runtime.trt.library import creators_of
    from selfdraft.runtime.trt.limits import PROFILES, SMALLEST

    limits = options.limits
    symbols = ("batch", "rows", "logit_rows", "capacity")
    rows = []
    for profile in PROFILES:
        usual, most = limits.usual(profile), limits.largest(profile)
        rows.append(
            (profile, *(f"{SMALLEST[s]}, {usual[s]}, {most[s]}" for s in symbols)),
        )
    plugins = ", ".join(
        f"{c.namespace}::{c.name} {c.version}" for c in creators_of(bundle.manifest)
    )
    graphs = bundle.manifest.graphs
    facts = [
        ("graphs", ", ".join(f"{n} ({len(g.plugin_nodes)} plugins)" for n, g in graphs.items())),
        ("plugins", plugins or "none"),
        ("workspace", bytes_text(options.workspace_bytes)),
        ("memory", _room_text(room.peak_bytes, room.available_bytes, "available")),
        ("disk", _room_text(room.disk_bytes, room.free_disk_bytes, "free")),
    ]
    header = ("profile", *(f"{s} (least, usual, most)" for s in symbols))
    return [f"nothing is built: {bundle.path}", table(facts), "", table(rows, header=header)]


def _room_text(needed: int, there: int, word: str) -> str:
    verdict = "enough" if there >= needed else "TOO LITTLE"
    return f"about {bytes_text(needed)} (estimate), {bytes_text(there)} {word}: {verdict}"


def _built_lines(folder: Path, pruned: list[str]) -> list[str]:
    plans = sorted(folder.glob("*.plan"))
    lines = [f"wrote {plan} ({bytes_text(plan.stat().st_size)})" for plan in plans]
    return [*lines, *(f"pruned {name}" for name in pruned)]


def _prune(bundle: Bundle) -> list[str]:
    from selfdraft.runtime.pruned import prune

    return prune(bundle)


def _tell(record: dict[str, Any], *, as_json: bool, lines: list[str]) -> None:
    if as_json:
        print_json(record)
    else:
        for line in lines:
            say(line)
