"""``selfdraft audit``: what sparse attention leaves out, and what that does to the output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfdraft.cli.console import print_json, say, stage_progress, table
from selfdraft.cli.options import (
    BackendOption,
    BundleArg,
    ChunkOption,
    JsonOption,
    ThreadsOption,
)

if TYPE_CHECKING:
    from selfdraft.cli.audit_run import AuditReport

SCHEMA = "selfdraft.audit/1"


def command(
    bundle: BundleArg,
    text: Annotated[
        Path,
        typer.Option("--text", metavar="FILE", help="UTF-8 text to run over.", show_default=False),
    ],
    context: Annotated[
        int | None,
        typer.Option(
            "--context",
            min=2,
            metavar="N",
            help="Tokens of the text; a shorter one is repeated.",
            show_default="the whole text",
        ),
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", min=1, metavar="N", help="Positions that are looked at.")
    ] = 64,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE.svg",
            help="Draw recall by layer and KL by position.",
            show_default=False,
        ),
    ] = None,
    chunk: ChunkOption = None,
    backend: BackendOption = "auto",
    threads: ThreadsOption = None,
    json_output: JsonOption = False,
) -> None:
    """Compare sparse with dense attention over a text: recall, KL, blocks read.

    Recall is the part of the dense softmax that the selected blocks hold; best is what a perfect
    choice of as many blocks would hold. Exits with 6 when the engine reads other blocks than the
    selection asks for.

    \b
    Example:
      selfdraft audit BUNDLE --text book.txt --context 32768 --plot audit.svg
    """
    from selfdraft.cli.audit_plot import check_plot, write_plot
    from selfdraft.cli.audit_rows import audited_ops
    from selfdraft.cli.audit_run import audit_text
    from selfdraft.cli.audit_text import text_ids
    from selfdraft.cli.session import EngineOptions, open_session

    if plot is not None:
        check_plot(plot)
    options = EngineOptions(backend=backend, threads=threads, chunk=chunk, drafts=0)
    session = open_session(bundle, options)
    audited_ops(session.bundle.manifest)  # refuses a dense bundle before it reads the text
    ids = text_ids(session, text, context=context)
    with stage_progress(quiet=json_output) as on_stage:
        report = audit_text(session, ids, rows=rows, on_progress=on_stage)
    if plot is not None:
        write_plot(plot, report, title=session.bundle.manifest.source.name)
    if json_output:
        from selfdraft.cli.audit_record import audit_record

        print_json({"schema": SCHEMA, "bundle": str(bundle), **audit_record(report)})
    else:
        _print(report)


def _print(report: AuditReport) -> None:
    from selfdraft.cli.audit_record import LAYER_HEADER, layer_row, notes_of, summary_rows

    say(table([layer_row(layer) for layer in report.layers], header=LAYER_HEADER))
    say("")
    say(table(summary_rows(report)))
    for text in notes_of(report):
        say(f"note: {text}")
