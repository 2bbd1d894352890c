"""``selfdraft bench``: plain against speculative decoding, interleaved in one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from selfdraft.cli.console import print_json_line, say, stage_progress, table
from selfdraft.cli.numbers import numbers
from selfdraft.cli.options import (
    BackendOption,
    BundleArg,
    ChunkOption,
    PrefillOption,
    ThreadsOption,
)
from selfdraft.errors import ConfigError, ResourceError

if TYPE_CHECKING:
    from selfdraft.cli.measure import MeasureOptions
    from selfdraft.cli.session import Session
    from selfdraft.runtime.request import Request

DEFAULT_TOKENS = 64


def command(
    bundle: BundleArg,
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="N,N,…",
            help="Prompt lengths in tokens; the prompt is cut or repeated. With --attention: lengths "
            "at the end of a run.",
            show_default="the prompt's own",
        ),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention",
            metavar="sparse,dense",
            help="Fill the caches with random rows instead of computing a prompt, and compare these.",
            show_default=False,
        ),
    ] = None,
    block_spread: Annotated[
        float,
        typer.Option(
            "--block-spread",
            min=0,
            max=1,
            metavar="S",
            help="Of those rows: 0.35 lets neighbours choose the same blocks, 0 each for itself.",
        ),
    ] = 0.35,
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
        int | None,
        typer.Option(
            "--tokens",
            min=2,
            metavar="N",
            help="Tokens of each run.",
            show_default="64, with --attention 16",
        ),
    ] = None,
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
    prefill: PrefillOption = "dense",
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
      selfdraft bench BUNDLE --context 128,2048 --force-acceptance 0.87,0.7 --drafts 1,2 --json
      selfdraft bench BUNDLE --context 4096,32768,131072 --attention sparse,dense
    """
    from selfdraft.cli.bench_filled import bench_filled, filled_options
    from selfdraft.cli.session import EngineOptions, open_session

    session = open_session(
        bundle, EngineOptions(backend=backend, threads=threads, chunk=chunk, prefill=prefill)
    )
    forced = _forced(force_acceptance)
    wanted = numbers("--drafts", drafts, int, 0, 8)
    lengths = numbers("--context", context, int, 1)
    if attention is not None:
        if prompt is not None or prompt_file is not None:
            raise ConfigError("--attention computes no prompt", hint="leave the prompt out")
        filled = filled_options(
            session,
            attention=attention,
            contexts=lengths,
            drafts=wanted,
            tokens=tokens,
            repeats=repeats,
            warmup=warmup,
            forced_acceptance=forced,
            block_spread=block_spread,
        )
        bench_filled(session, filled, head=_head(session), as_json=json_output)
        return
    options = _options(session, wanted, forced, repeats=repeats, warmup=warmup)
    _bench_prompt(
        session,
        options,
        lengths,
        tokens=tokens,
        prompt=prompt,
        prompt_file=prompt_file,
        as_json=json_output,
    )


def _options(
    session: Session,
    drafts: tuple[int, ...] | None,
    forced: tuple[float, ...] | None,
    *,
    repeats: int,
    warmup: int,
) -> MeasureOptions:
    from selfdraft.cli.measure import MeasureOptions

    chosen = (session.default_drafts,) if drafts is None else drafts
    check_forced(forced, chosen)
    return MeasureOptions(drafts=chosen, repeats=repeats, warmup=warmup, forced_acceptance=forced)


def _forced(text: str | None) -> tuple[float, ...] | None:
    return numbers("--force-acceptance", text, float, 0, 1)


def check_forced(forced: tuple[float, ...] | None, drafts: Sequence[int]) -> None:
    """A coin for every draft position, or none at all. Raises ``ConfigError``."""
    if forced is not None and len(forced) < max(drafts, default=0):
        raise ConfigError(
            f"--force-acceptance has {len(forced)} values for {max(drafts)} drafts",
            hint="give one value for each draft position: --force-acceptance 0.87,0.7",
        )


def _bench_prompt(
    session: Session,
    options: MeasureOptions,
    lengths: tuple[int, ...] | None,
    *,
    tokens: int | None,
    prompt: str | None,
    prompt_file: Path | None,
    as_json: bool,
) -> None:
    from selfdraft.cli.bench_prompt import choose_prompt, natural_prompts

    source = choose_prompt(session, prompt=prompt, file=prompt_file)
    whole = tokens is None and lengths is None and options.forced_acceptance is None
    tokens = tokens or DEFAULT_TOKENS
    lengths = lengths or (len(source.ids),)
    check_room(session, max(lengths) + tokens, f"{max(lengths)} prompt tokens and {tokens} more")
    if whole and source.name in ("example", "prompt"):
        prompts = natural_prompts(session, source)
        requests = [_request(ids, tokens, whole=True) for ids in prompts]
        name = f"{source.name}, whole replies"
        length = max(len(ids) for ids in prompts)
        cases = [BenchCase(requests=requests, context=length, source=name)]
    else:
        cases = []
        for length in lengths:
            ids, name = source.at_length(length)
            requests = [_request(ids, tokens, whole=False)]
            cases.append(BenchCase(requests=requests, context=length, source=name))
    _bench(session, options, cases, tokens=tokens, as_json=as_json)


class BenchCase(NamedTuple):
    """Requests that are measured together."""

    requests: list[Request]
    context: int
    """Tokens of the longest prompt."""
    source: str


def _bench(
    session: Session,
    options: MeasureOptions,
    cases: Sequence[BenchCase],
    *,
    tokens: int,
    as_json: bool,
) -> None:
    from selfdraft.cli.bench_record import HEADER, bench_record, bench_row
    from selfdraft.cli.measure import compare

    head = _head(session)
    rows = []
    for case in cases:
        with stage_progress(quiet=as_json) as on_stage:
            measured = compare(
                session,
                case.requests,
                options,
                context=case.context + tokens,
                on_stage=on_stage,
            )
        if not all(series.step_s for series in measured):
            raise ConfigError(
                "the replies are one token long, there is no step to measure",
                hint="give another --prompt, or a length: --tokens 64",
            )
        for series in measured:
            record = bench_record(
                series,
                measured[0],
                options,
                head=head,
                context=case.context,
                tokens=tokens,
                prompt_source=case.source,
            )
            if as_json:
                print_json_line(record)
            rows.append(bench_row(record))
    if not as_json:
        threads = f", {head['threads']} threads" if head["threads"] else ""
        say(f"{head['cpu']}{threads}, {head['backend']}")
        say(table(rows, header=HEADER))


def _request(ids: tuple[int, ...], tokens: int, *, whole: bool) -> Request:
    """Greedy; ``whole``: up to the reply's own end, else always ``tokens`` long."""
    from selfdraft.runtime.request import Request
    from selfdraft.runtime.sampling import SamplingParams

    return Request(
        prompt_ids=ids,
        sampling=SamplingParams(temperature=0.0),
        max_tokens=tokens,
        ignore_eos=not whole,
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


def check_room(session: Session, length: int, what: str) -> None:
    """Refuse what does not fit the bundle's context. Raises ``ResourceError``."""
    limit = session.bundle.manifest.limits.context_length
    if length > limit:
        raise ResourceError(
            f"{what} do not fit the context of {limit}",
            hint="lower --context or --tokens, or export with a larger --context",
        )
