"""``selfdraft verify``: check a bundle against its files, its source and itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfdraft.cli.console import print_json, say, stage_progress, table
from selfdraft.cli.options import BundleArg, JsonOption
from selfdraft.errors import VerificationError

SCHEMA = "selfdraft.verify/1"


def command(
    bundle: BundleArg,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="FOLDER",
            help="The checkpoint it was made from: compare with its weights too.",
            show_default=False,
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt",
            metavar="TEXT",
            help="Compare plain and speculative decoding on this prompt; may be repeated.",
            show_default="prompts of the bundle",
        ),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Check a bundle: hashes, graphs against torch, chunked prefill, speculative against plain.

    Exits with 6 when a check fails.

    \b
    Example:
      selfdraft verify BUNDLE --json
    """
    from selfdraft.cli.ladder import verify_bundle

    with stage_progress(quiet=json_output) as on_stage:
        report = verify_bundle(bundle, checkpoint=checkpoint, prompts=prompt, on_progress=on_stage)
    checks = [(check.name, check.passed, check.detail) for check in report.checks]
    failed = [name for name, passed, _ in checks if not passed]
    if json_output:
        keys = ("name", "passed", "detail")
        records = [dict(zip(keys, check, strict=True)) for check in checks]
        print_json({"schema": SCHEMA, "bundle": str(bundle), "ok": report.ok, "checks": records})
    else:
        say(table([("ok" if ok else "FAILED", name, why) for name, ok, why in checks]))
    if not report.ok:
        raise VerificationError(
            f"{len(failed)} of {len(checks)} checks of {bundle} failed: {', '.join(failed)}",
            hint="export the bundle again; if it fails again, report this with --json",
        )
