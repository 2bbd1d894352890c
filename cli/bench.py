"""``selfdraft bench``: plain against speculative decoding, interleaved in one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfdraft.cli.console import print_json_line, say, stage_progress, table
from selfdraft.cli.numbers import numbers
from selfdraft.cli.options import BackendOption, BundleArg, ChunkOption, ThreadsOption
from selfdraft.errors import ConfigError, ResourceError

if TYPE_CHECKING:
    from selfdraft.cli.bench_prompt import PromptSource
    from selfdraft.cli.measure import MeasureOptions
    from selfdraft.cli.session import Session
    from selfdraft.runtime.request import Request


def command(
    bundle: BundleArg,
    contexts: Annotated[
        str | None,
        typer.Option(
            "--contexts",
            metavar="N,N,…",
            help="Prompt lengths in tokens; the prompt is cut or repeated.",
            show_default="the prompt's own",
        ),
    ] = None,
    drafts: Annotated[
        str | None,
        typer.Option(
            "--drafts",
            metavar="K,K,…",
            help="Drafts of a step; plain decoding always runs too.",
            show_default="1 with an MTP head",
        ),
    ] = None,
    tokens: Annotated[
        int, typer.Option("--tokens", min=2, metavar="N", help="Tokens of each run.")
    ] = 64,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, metavar="N", help="Counted runs of each.")
    ] = 3,
    warmup: Annotated[
        int, typer.Option("--warmup", min=0, metavar="N", help="Runs before those.")
    ] = 1,
    force_acceptance: Annotated[
        str | None,
        typer.Option(
            "--force-acceptance",
            metavar="P,P,…",
            help="Replace the verdict on each draft position by a coin: synthetic figures.",
            show_default=False,
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            metavar="TEXT",
            help="Prompt, put through the chat template; - reads stdin.",
            show_default="the bundle's first example, else random tokens",
        ),
    ] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option(
            "--prompt-file", metavar="FILE", help="Text to continue, as it is.", show_default=False
        ),
    ] = None,
    chunk: ChunkOption = None,
    backend: BackendOption = "ort",
    threads: ThreadsOption = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON line a row on stdout.")
    ] = False,
) -> None:
    """Measure plain against speculative decoding: same prompt, one run, in turns.

    The step time holds everything; "loop µs" is what is left of it outside the engine.

    \b
    Examples:
      selfdraft bench BUNDLE --drafts 1,2,3
      selfdraft bench BUNDLE --contexts 128,2048 --force-acceptance 0.87,0.7 --drafts 1,2 --json
    """
    from selfdraft.cli.bench_prompt import choose_prompt
    from selfdraft.cli.measure import MeasureOptions
    from selfdraft.cli.session import EngineOptions, open_session

    session = open_session(bundle, EngineOptions(backend=backend, threads=threads, chunk=chunk))
    wanted = numbers("--drafts", drafts, int, 0, 8)
    forced = numbers("--force-acceptance", force_acceptance, float, 0, 1)
    chosen = (session.default_drafts,) if wanted is None else wanted
    if forced is not None and len(forced) < max(chosen, default=0):
        raise ConfigError(
            f"--force-acceptance has {len(forced)} values for {max(chosen)} drafts",
            hint="give one value for each draft position: --force-acceptance 0.87,0.7",
        )
    options = MeasureOptions(
        drafts=chosen, repeats=repeats, warmup=warmup, forced_acceptance=forced
    )
    source = choose_prompt(session, prompt=prompt, file=prompt_file)
    lengths = numbers("--contexts", contexts, int, 1) or (len(source.ids),)
    _check_room(session, max(lengths), tokens)
    _bench(session, options, source, lengths, tokens=tokens, as_json=json_output)


def _bench(
    session: Session,
    options: MeasureOptions,
    source: PromptSource,
    lengths: Sequence[int],
    *,
    tokens: int,
    as_json: bool,
) -> None:
    from selfdraft.cli.bench_record import HEADER, bench_record, bench_row
    from selfdraft.cli.measure import compare

    head = _head(session)
    rows = []
    for length in lengths:
        ids, source_name = source.at_length(length)
        with stage_progress(quiet=as_json) as on_stage:
            measured = compare(
                session,
                [_request(ids, tokens)],
                options,
                context=length + tokens,
                on_stage=on_stage,
            )
        for series in measured:
            record = bench_record(
                series,
                measured[0],
                options,
                head=head,
                context=length,
                tokens=tokens,
                prompt_source=source_name,
            )
            if as_json:
                print_json_line(record)
            rows.append(bench_row(record))
    if not as_json:
        threads = f", {head['threads']} threads" if head["threads"] else ""
        say(f"{head['cpu']}{threads}, {head['backend']}")
        say(table(rows, header=HEADER))


def _request(ids: tuple[int, ...], tokens: int) -> Request:
    """Greedy, and always ``tokens`` long."""
    from selfdraft.runtime.request import Request
    from selfdraft.runtime.sampling import SamplingParams

    return Request(
        prompt_ids=ids,
        sampling=SamplingParams(temperature=0.0),
        max_tokens=tokens,
        ignore_eos=True,
    )


def _head(session: Session) -> dict[str, Any]:
    from selfdraft.cli.environment import bundle_sha256, environment_record

    manifest = session.bundle.manifest
    return {
        **environment_record(),
        "bundle": str(session.bundle.path),
        "bundle_sha256": bundle_sha256(session.bundle.path),
        "model": manifest.source.name,
        "weights": manifest.precision.weights,
        "backend": session.backend.name,
        "threads": session.threads,
    }


def _check_room(session: Session, length: int, tokens: int) -> None:
    limit = session.bundle.manifest.limits.context_length
    if length + tokens > limit:
        raise ResourceError(
            f"{length} prompt tokens and {tokens} more do not fit the context of {limit}",
            hint="lower --contexts or --tokens, or export with a larger --context",
        )
