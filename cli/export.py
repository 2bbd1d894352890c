"""``selfdraft export``: a checkpoint becomes a bundle."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfdraft.baseline import DEFAULT_TASK, bucket_label, bucket_of
from selfdraft.cli.console import (
    OnStage,
    bytes_text,
    note,
    print_json,
    say,
    stage_progress,
    table,
)
from selfdraft.cli.long_context_options import (
    AttentionOption,
    BudgetOption,
    BudgetShareOption,
    FirstBudgetOption,
    FirstLayersOption,
    KvOption,
    LocalBlocksOption,
    MtpWindowOption,
    SelectorOption,
    SinksOption,
    SpreadOption,
)
from selfdraft.cli.options import CheckpointArg, JsonOption
from selfdraft.errors import ConfigError

if TYPE_CHECKING:
    from selfdraft.baseline import Baseline
    from selfdraft.export.bundle import ExportPlan
    from selfdraft.export.options import ExportOptions, ExportReport
    from selfdraft.measured import Measured

SCHEMA = "selfdraft.export/1"


def command(
    checkpoint: CheckpointArg,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="BUNDLE", help="Folder to write.", show_default=False
        ),
    ],
    target: Annotated[
        str,
        typer.Option(
            "--target", metavar="cpu|orin-jp6|orin-jp7", help="Where the bundle will run."
        ),
    ] = "cpu",
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            metavar="fp32|bf16|fp16|int4",
            help="Storage of the matrices; Orin takes fp16 and int4.",
            show_default="fp32, Orin fp16; 4-bit ones of the checkpoint stay as they are",
        ),
    ] = None,
    lm_head: Annotated[
        str | None,
        typer.Option(
            "--lm-head",
            metavar="fp32|bf16|fp16|int4|int8",
            help="Storage of LM head and draft head; Orin takes fp16 and int4.",
            show_default="as --weights",
        ),
    ] = None,
    mtp_weights: Annotated[
        str | None,
        typer.Option(
            "--mtp-weights",
            metavar="fp32|bf16|fp16|int4|int8",
            help="Storage of the MTP head's own matrices; Orin takes fp16 and int4.",
            show_default="as --weights",
        ),
    ] = None,
    embedding: Annotated[
        str | None,
        typer.Option(
            "--embedding",
            metavar="fp32|bf16|fp16|int8",
            help="Storage of the embedding table, int8 with a scale for each token; Orin takes fp16.",
            show_default="fp32, Orin fp16; as 16-bit --weights where the LM head is not tied to it",
        ),
    ] = None,
    int4_block: Annotated[
        int | None,
        typer.Option(
            "--int4-block",
            metavar="N",
            help="Weights that share a scale.",
            show_default="32, Orin 128",
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            "--context",
            metavar="N",
            help="Tokens of prompt and reply together.",
            show_default="the model's, at most 32768",
        ),
    ] = None,
    draft_vocab: Annotated[
        int | None,
        typer.Option(
            "--draft-vocab",
            metavar="N",
            help="Tokens the MTP head drafts from: cheaper drafts, fewer accepted, the same output.",
            show_default="all, Orin 8192",
        ),
    ] = None,
    draft_vocab_text: Annotated[
        Path | None,
        typer.Option(
            "--draft-vocab-text",
            metavar="FILE",
            help="Text whose most frequent tokens those are.",
            show_default="the tokenizer's first N",
        ),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            "--calibrate",
            metavar="FILE",
            help="Text to choose the MTP head's tap on, to measure what quantising costs, and to count "
            "the baseline of alerts and probe on.",
            show_default="none",
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            metavar="NAME=FILE",
            help="A baseline of its own for a kind of request; may be repeated.",
            show_default="none",
        ),
    ] = None,
    baseline_tokens: Annotated[
        int,
        typer.Option(
            "--baseline-tokens",
            min=64,
            metavar="N",
            help="Tokens of each text that the baseline covers; more reach later positions.",
        ),
    ] = 4096,
    activation_aware: Annotated[
        bool,
        typer.Option(
            "--activation-aware",
            help="Scale and search int4 weights by the activations of that text.",
        ),
    ] = False,
    attention: AttentionOption = "checkpoint",
    selector: SelectorOption = "mean_std",
    spread: SpreadOption = None,
    budget: BudgetOption = 4096,
    budget_share: BudgetShareOption = 0.0,
    sinks: SinksOption = 1,
    local_blocks: LocalBlocksOption = 8,
    first_layers: FirstLayersOption = 0,
    first_budget: FirstBudgetOption = None,
    mtp_window: MtpWindowOption = 1024,
    kv: KvOption = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a bundle that is there.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the checkpoint and the options, write nothing.")
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Turn a checkpoint into a bundle: graphs, weights, tokenizer, manifest.

    Nothing of the checkpoint is executed, and a bundle appears whole or not at all.

    \b
    Examples:
      selfdraft export ./MiMo-7B-RL -o mimo --weights int4 --draft-vocab 8192
      selfdraft export ./Qwen3-0.6B -o qwen --context 8192 --dry-run
      selfdraft export ./MiMo-7B-RL -o long --attention sparse --budget 4096 --kv int8
      selfdraft export ./MiMo-7B-RL -o mimo-orin --target orin-jp6 --weights int4
    """
    from selfdraft.export.attention_options import AttentionOptions
    from selfdraft.export.hub import local_checkpoint
    from selfdraft.export.options import ExportOptions

    checkpoint = local_checkpoint(checkpoint)
    chosen: dict[str, Any] = {"kind": attention, "selector": selector, "kv": kv}
    given: dict[str, Any] = {"target": target, "weights": weights}
    given |= {"lm_head": lm_head, "mtp_weights": mtp_weights, "embedding": embedding}
    options = ExportOptions(
        **given,
        int4_block=int4_block,
        context=context,
        draft_vocab=draft_vocab,
        draft_vocab_text=draft_vocab_text,
        attention=AttentionOptions(
            **chosen,
            spread=spread,
            budget_tokens=budget,
            budget_share=budget_share,
            sinks=sinks,
            local_blocks=local_blocks,
            first_layers=first_layers,
            first_budget_tokens=first_budget,
            mtp_window=mtp_window,
        ),
        calibrate=calibrate,
        activation_aware=activation_aware,
        overwrite=overwrite,
    )
    if dry_run:
        _plan(checkpoint, output, options, as_json=json_output)
    else:
        texts = _baseline_texts(calibrate, task)
        _export(checkpoint, output, options, texts, baseline_tokens, as_json=json_output)


def _baseline_texts(calibrate: Path | None, tasks: list[str] | None) -> dict[str, Path]:
    """Texts of the baseline by task."""
    texts = {DEFAULT_TASK: calibrate} if calibrate is not None else {}
    for given in tasks or []:
        name, sign, file = given.partition("=")
        if not name or not sign or not Path(file).is_file():
            raise ConfigError(
                f"--task {given} is no NAME=FILE with a file that exists",
                hint="for example: --task code=code.txt",
            )
        texts[name] = Path(file)
    return texts


def _plan(checkpoint: Path, output: Path, options: ExportOptions, *, as_json: bool) -> None:
    from selfdraft.export.bundle import check_place, plan_export

    output = check_place(checkpoint, output, options)
    plan = plan_export(checkpoint, options)
    if as_json:
        print_json({"schema": SCHEMA, "dry_run": True, "output": str(output), **_planned(plan)})
        return
    say(f"{checkpoint} can be exported ({plan.model.spec.family}); nothing was written")
    say(f"disk space   {bytes_text(plan.num_bytes)} at most")
    say(f"context      {plan.limits.context_length} tokens")
    _print_notes(plan.notes)


def _planned(plan: ExportPlan) -> dict[str, Any]:
    return {
        "family": plan.model.spec.family,
        "disk_bytes_at_most": plan.num_bytes,
        "context_length": plan.limits.context_length,
        "has_mtp": plan.model.spec.mtp is not None,
        "notes": plan.notes,
    }


def _export(
    checkpoint: Path,
    output: Path,
    options: ExportOptions,
    texts: dict[str, Path],
    baseline_tokens: int,
    *,
    as_json: bool,
) -> None:
    from selfdraft.export.bundle import export_bundle

    with stage_progress(quiet=as_json) as on_stage:
        report = export_bundle(checkpoint, output, options, on_stage)
        if texts and report.manifest.has_mtp:
            report = _with_baseline(report, texts, baseline_tokens, on_stage)
    measured, baseline = report.manifest.measured, report.manifest.baseline
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "dry_run": False,
                "output": str(report.output),
                "seconds": report.seconds,
                "peak_rss_bytes": report.peak_rss_bytes,
                "bytes_by_part": report.bytes_by_part,
                "mtp_bytes": report.mtp_bytes,
                "read_gb_per_s": report.read_gb_per_s,
                "measured": asdict(measured) if measured else None,
                "baseline": asdict(baseline) if baseline else None,
                "has_mtp": report.manifest.has_mtp,
                "notes": report.manifest.notes,
            }
        )
    else:
        _print_report(report)


def _with_baseline(
    report: ExportReport, texts: dict[str, Path], tokens: int, on_stage: OnStage
) -> ExportReport:
    """The report of the bundle with its baseline; a machine that cannot run it leaves it out."""
    if report.manifest.target != "cpu":
        note("no baseline: a bundle for a board is not run here")
        return report
    if importlib.util.find_spec("onnxruntime") is None:
        note("no baseline: it needs onnxruntime (pip install 'selfdraft[cpu]')")
        return report
    from selfdraft.cli.baseline import add_baseline

    manifest = add_baseline(report.output, texts, tokens=tokens, on_progress=on_stage)
    return replace(report, manifest=manifest)


def _print_report(report: ExportReport) -> None:
    say(f"wrote {report.output} in {report.seconds:.1f} s")
    rows = [(part, bytes_text(size)) for part, size in report.bytes_by_part.items()]
    if report.manifest.has_mtp:
        rows.append(("MTP adds", f"{bytes_text(report.mtp_bytes)} ({report.mtp_share:.1%})"))
    rows.append(("peak memory", bytes_text(report.peak_rss_bytes)))
    rows.append(("weights read", f"{report.read_gb_per_s:.2f} GB/s"))
    say(table(rows))
    if report.manifest.measured is not None:
        say(table(_measured_rows(report.manifest.measured)))
    if report.manifest.baseline is not None:
        say(table(_baseline_rows(report.manifest.baseline)))
    _print_notes(report.manifest.notes)
    if not report.manifest.has_mtp:
        say("note: there is no MTP head, so decoding is plain (speculation is off)")
    say(f"next: selfdraft verify {report.output}")


def _measured_rows(measured: Measured) -> list[tuple[str, ...]]:
    """Figures of the calibration text: taps, and scores before and after quantising."""
    rows: list[tuple[str, ...]] = [(f"on {measured.text}", f"{measured.tokens} tokens", "")]
    for tap, share in measured.tap_acceptance.items():
        rows.append((f"acceptance {tap}", f"{share:.1%}", ""))
    for recycled, share in measured.recycle_acceptance.items():
        rows.append((f"later drafts {recycled}", f"{share:.1%}", ""))
    after = measured.after
    if after is not None:
        before = measured.before
        ratio = after.perplexity / before.perplexity
        change = f"{before.perplexity:.3f} to {after.perplexity:.3f}"
        rows.append(("perplexity", change, f"x {ratio:.4f}"))
        if before.acceptance is not None and after.acceptance is not None:
            change = f"{before.acceptance:.1%} to {after.acceptance:.1%}"
            points = (after.acceptance - before.acceptance) * 100
            rows.append(("acceptance", change, f"{points:+.1f} points"))
    return rows


def _baseline_rows(baseline: Baseline) -> list[tuple[str, ...]]:
    """First drafts by task and position, with their 95 % intervals."""
    rows: list[tuple[str, ...]] = []
    for task in baseline.tasks:
        for bucket in task.buckets:
            accepted, drafted = bucket.counts.trials(0)
            low, high = bucket.counts.interval(0)
            label = bucket_label(bucket_of(bucket.start))
            share = f"{accepted / max(drafted, 1):.1%} ({low:.1%} to {high:.1%})"
            rows.append((f"baseline {task.task}", label, share, f"{drafted} drafts"))
    return rows


def _print_notes(notes: tuple[str, ...]) -> None:
    for text in notes:
        say(f"note: {text}")
