"""``selfdraft verify``: check a bundle against its files, its source and itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfdraft.cli.console import print_json, say, stage_progress, table
from selfdraft.cli.options import BundleArg, JsonOption
from selfdraft.cli.verify_hashes import ENGINE, check_hashes
from selfdraft.errors import ConfigError, VerificationError

SCHEMA = "selfdraft.verify/1"


def command(
    bundle: BundleArg,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="CHECKPOINT",
            help="The checkpoint it was made from, or its hub name: compare with its weights too.",
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
    hashes: Annotated[
        bool,
        typer.Option(
            "--hashes", help="Only the files, and the engines built from them; needs no engine."
        ),
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Check a bundle: hashes, graphs against torch, chunked prefill, speculative against plain.

    Exits with 6 when a check fails.

    \b
    Examples:
      selfdraft verify BUNDLE --json
      selfdraft verify BUNDLE --hashes
    """
    if hashes:
        checks = _hashes(bundle, checkpoint, prompt)
    else:
        from selfdraft.cli.ladder import verify_bundle
        from selfdraft.export.hub import local_checkpoint

        checkpoint = None if checkpoint is None else local_checkpoint(checkpoint)
        with stage_progress(quiet=json_output) as on_stage:
            report = verify_bundle(
                bundle, checkpoint=checkpoint, prompts=prompt, on_progress=on_stage
            )
        checks = [(check.name, check.passed, check.detail) for check in report.checks]
    failed = [name for name, passed, _ in checks if not passed]
    if json_output:
        keys = ("name", "passed", "detail")
        records = [dict(zip(keys, check, strict=True)) for check in checks]
        print_json({"schema": SCHEMA, "bundle": str(bundle), "ok": not failed, "checks": records})
    else:
        say(table([("ok" if ok else "FAILED", name, why) for name, ok, why in checks]))
    if failed:
        hint = "copy or export the bundle again; if it fails again, report this with --json"
        if all(name.startswith(ENGINE) for name in failed):
            hint = f"build the engine again on its device: selfdraft build {bundle}"
        raise VerificationError(
            f"{len(failed)} of {len(checks)} checks of {bundle} failed: {', '.join(failed)}",
            hint=hint,
        )


def _hashes(
    bundle: Path, checkpoint: Path | None, prompts: list[str] | None
) -> list[tuple[str, bool, str]]:
    if checkpoint is not None or prompts:
        raise ConfigError(
            "--hashes looks at no checkpoint and no prompt", hint="leave one of them out"
        )
    return [(check.name, check.passed, check.detail) for check in check_hashes(bundle)]
