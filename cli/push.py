"""``selfdraft push``: a bundle to a board, hash-checked at the other end."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from selfdraft.cli.console import print_json, say, stage_progress
from selfdraft.cli.options import BundleArg, JsonOption

SCHEMA = "selfdraft.push/1"


def command(
    bundle: BundleArg,
    place: Annotated[
        str,
        typer.Argument(
            metavar="USER@BOARD:/FOLDER", help="Where it goes; the folder becomes the bundle."
        ),
    ],
    json_output: JsonOption = False,
) -> None:
    """Copy a bundle to a board over ssh with rsync, or with scp where there is none.

    The board needs no selfdraft for it, only sha256sum. What is there already is not copied again.
    A bundle that is there stays usable until every hash of the new one was checked over there; cut
    short, the same command goes on. Engines are not copied: they belong to the device that built
    them, and want to be built again for another bundle.

    \b
    Example:
      selfdraft push BUNDLE user@board:/data/bundle
    """
    from selfdraft.cli.push_copy import push_bundle
    from selfdraft.cli.push_remote import parse_place
    from selfdraft.runtime.bundle import open_bundle

    target = parse_place(place)
    opened = open_bundle(bundle)
    with stage_progress(quiet=json_output) as on_stage:
        pushed = push_bundle(opened, target, on_stage=on_stage)
    files = len(opened.manifest.files) + 1
    total = sum(spec.bytes for spec in opened.manifest.files.values())
    if json_output:
        keys = {"bundle": str(bundle), "place": target.text}
        print_json({"schema": SCHEMA, **keys, "files": files, "bytes": total, **asdict(pushed)})
        return
    say(f"{files} files at {target.text}, every hash checked there; {len(pushed.copied)} were new")
    for name in pushed.removed:
        say(f"removed there: {name}, of the bundle before")
    if opened.manifest.target != "cpu":
        say(f"next, on the board: selfdraft build {target.folder}")
