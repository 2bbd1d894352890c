"""``selfdraft align``: train the MTP head of a checkpoint, or give it one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfdraft.cli.console import note, print_json, say, stage_progress, table
from selfdraft.cli.options import CheckpointArg, JsonOption

if TYPE_CHECKING:
    from selfdraft.export.align.run import AlignReport

SCHEMA = "selfdraft.align/1"


def command(
    checkpoint: CheckpointArg,
    text: Annotated[
        list[Path],
        typer.Option(
            "--text",
            metavar="FILE",
            help="UTF-8 text to train on, like what the model will write; may be repeated.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="CHECKPOINT2", help="Folder to write.", show_default=False
        ),
    ],
    steps: Annotated[
        int, typer.Option("--steps", min=1, metavar="N", help="Optimiser steps.")
    ] = 600,
    tokens: Annotated[
        int,
        typer.Option(
            "--tokens",
            min=1,
            metavar="N",
            help="Tokens of the text that are used at most; memory holds a hidden state of each.",
        ),
    ] = 262_144,
    length: Annotated[
        int, typer.Option("--length", min=8, metavar="N", help="Tokens of a sequence.")
    ] = 256,
    batch: Annotated[
        int, typer.Option("--batch", min=8, metavar="N", help="Tokens of a step.")
    ] = 2048,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", metavar="R", help="Its peak.")
    ] = 3e-3,
    distillation: Annotated[
        float,
        typer.Option(
            "--distillation",
            metavar="W",
            help="Weight of the backbone's distribution, 0 to 1; the rest is the text's tokens.",
        ),
    ] = 0.9,
    drafts: Annotated[
        int,
        typer.Option("--drafts", min=1, max=8, metavar="K", help="Drafts of a chain to train."),
    ] = 3,
    device: Annotated[
        str,
        typer.Option("--device", metavar="auto|cpu|cuda", help="Where to train."),
    ] = "auto",
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Draws batches and the held-out text.")
    ] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a folder that is there.")
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Train the MTP head of a checkpoint on a text; its backbone stays bit for bit.

    A dense model without a head gets one in its family's naming. A tenth of the text is held out: what
    accepts most drafts there is kept. Ctrl-C ends the training and keeps the best so far.

    \b
    Examples:
      selfdraft align ./MiMo-7B-SFT --text replies.txt -o ./MiMo-7B-SFT-aligned
      selfdraft align ./Qwen3-0.6B --text a.txt --text b.txt -o ./Qwen3-0.6B-MTP --steps 4000
    """
    from selfdraft.cli.failures import EXIT_INTERRUPTED
    from selfdraft.cli.interrupts import stop_on_interrupt
    from selfdraft.export.bundle import check_exporter
    from selfdraft.export.hub import local_checkpoint

    check_exporter("align")
    from selfdraft.export.align.run import AlignOptions, align_checkpoint

    options = AlignOptions(
        tokens=tokens,
        length=length,
        steps=steps,
        batch_tokens=batch,
        learning_rate=learning_rate,
        distillation=distillation,
        drafts=drafts,
        seed=seed,
        device=device,
        overwrite=overwrite,
    )
    checkpoint = local_checkpoint(checkpoint)
    with stage_progress(quiet=json_output) as on_stage, stop_on_interrupt() as flag:
        report = align_checkpoint(
            checkpoint,
            output,
            text,
            options,
            on_progress=on_stage,
            on_score=lambda step, share: note(f"step {step}: {share:.1%} accepted"),
            stopped=lambda: flag.is_set,
        )
    if json_output:
        print_json({"schema": SCHEMA, **asdict(report)})
    else:
        _print(report)
    if report.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _print(report: AlignReport) -> None:
    made = "a new head" if report.new_head else "the head"
    state = "interrupted, the best so far is kept" if report.interrupted else "done"
    say(f"wrote {report.output}: {made}, {state}")
    rows = [
        ("held-out text", f"{report.held_out_tokens} tokens"),
        ("acceptance before", f"{report.before:.1%}"),
        ("acceptance after", f"{report.after:.1%} (step {report.best_step} of {report.steps})"),
        ("time", f"{report.seconds:.0f} s on {report.device}"),
    ]
    say(table(rows))
    if report.best_step == 0:
        say("note: no step was better than the start, so the head is as it was")
    say(f"next: selfdraft export {report.output} -o BUNDLE")
