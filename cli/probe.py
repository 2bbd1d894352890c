"""``selfdraft probe``: what explains that fewer drafts are accepted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfdraft.baseline import DEFAULT_TASK
from selfdraft.cli.console import note, print_json, say, stage_progress, table
from selfdraft.cli.options import (
    BackendOption,
    BundleArg,
    ChunkOption,
    JsonOption,
    ThreadsOption,
)
from selfdraft.errors import ConfigError

if TYPE_CHECKING:
    from selfdraft.cli.probe_run import ProbeReport
    from selfdraft.cli.probe_texts import ProbeText
    from selfdraft.cli.session import Session


def command(
    bundle: BundleArg,
    text: Annotated[
        Path | None,
        typer.Option(
            "--text",
            metavar="FILE",
            help="UTF-8 text like yours, to compare with the baseline's.",
            show_default=False,
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help="Prompts, one a line: the replies to them are that text.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        str,
        typer.Option("--task", metavar="NAME", help="Whose baseline text to compare with."),
    ] = DEFAULT_TASK,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="CHECKPOINT",
            help="What the bundle was made from, or its hub name: its head is tried in fp32.",
            show_default=False,
        ),
    ] = None,
    expected: Annotated[
        float | None,
        typer.Option(
            "--expected",
            min=0.0,
            max=1.0,
            metavar="SHARE",
            help="Acceptance that the head had once, on such text.",
            show_default="as measured at export",
        ),
    ] = None,
    tokens: Annotated[
        int,
        typer.Option("--tokens", min=64, metavar="N", help="Tokens of each text at most."),
    ] = 4096,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE.html",
            help="Write a report with plots, in one file.",
            show_default=False,
        ),
    ] = None,
    chunk: ChunkOption = None,
    backend: BackendOption = "auto",
    threads: ThreadsOption = None,
    json_output: JsonOption = False,
) -> None:
    """Find out why drafts are rejected, by measuring again with one thing changed at a time.

    Wiring, KV precision, sparse attention, quantised weights, a damaged head, a backbone that was
    fine-tuned, far positions, and another kind of text are told apart, each with its cost in points of
    acceptance. Every figure is the share of first drafts that equal the model's own greedy choice.

    \b
    Examples:
      selfdraft probe BUNDLE --text replies.txt --html probe.html
      selfdraft probe BUNDLE --prompts prompts.txt --checkpoint ./MiMo-7B-RL
    """
    from selfdraft.cli.probe_run import ProbeOptions, run_probe
    from selfdraft.cli.probe_texts import baseline_text
    from selfdraft.cli.session import EngineOptions, open_session

    if text is not None and prompts is not None:
        raise ConfigError("--text and --prompts are given together", hint="choose one of them")
    if html is not None:
        from selfdraft.cli.probe_html import check_place

        check_place(html)
    options = EngineOptions(backend=backend, threads=threads, chunk=chunk)
    if checkpoint is not None:
        from selfdraft.export.hub import local_checkpoint

        checkpoint = local_checkpoint(checkpoint)
    session = open_session(bundle, options)
    given = ProbeOptions(
        baseline=baseline_text(session, task, tokens=tokens),
        own=_own_text(session, text, prompts, tokens=tokens),
        checkpoint=checkpoint,
        expected=expected,
    )
    with stage_progress(quiet=json_output) as on_stage:
        report = run_probe(session, given, on_stage)
    _show(report, session, bundle, html=html, as_json=json_output)


def _own_text(
    session: Session, text: Path | None, prompts: Path | None, *, tokens: int
) -> ProbeText | None:
    from selfdraft.cli.probe_texts import replies_text, user_text

    if text is not None:
        return user_text(session, text, tokens=tokens)
    return None if prompts is None else replies_text(session, prompts, tokens=tokens)


def _show(
    report: ProbeReport, session: Session, bundle: Path, *, html: Path | None, as_json: bool
) -> None:
    from selfdraft.cli.probe_record import probe_record

    record = probe_record(report, session.bundle.manifest, bundle=str(bundle))
    if as_json:
        print_json(record)
    else:
        _print(report)
    if html is not None:  # last: what was measured is not lost where it cannot be written
        from selfdraft.cli.probe_html import write_html

        write_html(html, record)
        note(f"wrote {html}")


def _print(report: ProbeReport) -> None:
    from selfdraft.cli.probe_record import CAUSE_HEADER, SHARE_HEADER, effect_rows, share_rows

    say(table(share_rows(report), header=SHARE_HEADER))
    say("")
    say(table(effect_rows(report), header=CAUSE_HEADER))
    say("")
    for text in report.untold:
        say(f"not told: {text}")
    say(f"verdict: {report.verdict.summary}")
    for text in report.verdict.advice:
        say(f"advice: {text}")
