"""``selfdraft bench``: plain against speculative decoding, interleaved in one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from selfdraft.cli.board_meter import live_board
from selfdraft.cli.console import note, print_json_line, say, stage_progress, table
from selfdraft.cli.numbers import numbers
from selfdraft.cli.options import (
    BackendOption,
    ChunkOption,
    PrefillOption,
    ThreadsOption,
)
from selfdraft.errors import ConfigError, ResourceError

if TYPE_CHECKING:
    from selfdraft.cli.board_meter import BoardReader
    from selfdraft.cli.measure import MeasureOptions
    from selfdraft.cli.session import Session
    from selfdraft.runtime.request import Request

DEFAULT_TOKENS = 64
BOARD_WARMUP_S = 2.0
"""A board's first pulse reads at two thirds of the bandwidth it settles at."""
ACTIONS = ("compare", "report")


def command(
    bundle: Annotated[
        Path,
        typer.Argument(
            metavar="BUNDLE|compare|report",
            help="Bundle folder to measure; or what to do with the lines of such runs.",
            show_default=False,
        ),
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE…]",
            help="Lines of --json: two to compare, one or more to report on.",
            show_default=False,
        ),
    ] = None,
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
        float | None,
        typer.Option(
            "--block-spread",
            min=0,
            max=1,
            metavar="S",
            help="Of those rows: 0.1 lets neighbours share nine blocks in ten, 0 each choose for itself.",
            show_default="0.1",
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
    warmup_seconds: Annotated[
        float | None,
        typer.Option(
            "--warmup-seconds",
            min=0,
            metavar="S",
            help="They go on for this long at least.",
            show_default="2 on a board, else 0",
        ),
    ] = None,
    power: Annotated[
        str | None,
        typer.Option(
            "--power",
            metavar="MODE",
            help="Power mode that the board must be in, else the run counts as invalid.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="With report: write plots there too.",
            show_default=False,
        ),
    ] = None,
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
    backend: BackendOption = "auto",
    threads: ThreadsOption = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON line a row on stdout.")
    ] = False,
) -> None:
    """Measure plain against speculative decoding: same prompt, one run, in turns.

    The step time holds everything; "loop µs" is what is left of it outside the engine. On a board
    power, clocks and temperatures are read during the run (docs/benchmarking.md).

    \b
    Examples:
      selfdraft bench BUNDLE --drafts 1,2,3
      selfdraft bench BUNDLE --context 128,2048 --force-acceptance 0.87,0.7 --drafts 1,2 --json
      selfdraft bench BUNDLE --context 4096,32768,131072 --attention sparse,dense
      selfdraft bench serve --help
      selfdraft bench compare before.jsonl after.jsonl
      selfdraft bench report after.jsonl -o plots
    """
    if str(bundle) in ACTIONS:
        _on_files(str(bundle), files or [], output=output, as_json=json_output)
        return
    if files:
        raise ConfigError(
            f"{files[0]} is more than the one bundle to measure",
            hint="selfdraft bench BUNDLE, or: selfdraft bench compare A B",
        )
    from selfdraft.cli.bench_filled import bench_filled, filled_options
    from selfdraft.cli.bench_head import bench_head
    from selfdraft.cli.session import EngineOptions, open_session
    from selfdraft.cli.synthetic_cache import Content

    if block_spread is not None and attention is None:
        raise ConfigError(
            "--block-spread describes the random rows of --attention, which is not given",
            hint="add --attention sparse,dense, or leave it out",
        )
    session = open_session(
        bundle, EngineOptions(backend=backend, threads=threads, chunk=chunk, prefill=prefill)
    )
    forced = _forced(force_acceptance)
    wanted = numbers("--drafts", drafts, int, 0, 8)
    lengths = numbers("--context", context, int, 1)
    if attention is not None:
        if prompt is not None or prompt_file is not None:
            raise ConfigError("--attention computes no prompt", hint="leave the prompt out")
        if prefill != "dense":
            raise ConfigError("--attention computes no prompt", hint="leave out --prefill")
        filled = filled_options(
            session,
            attention=attention,
            contexts=lengths,
            drafts=wanted,
            tokens=tokens,
            repeats=repeats,
            warmup=warmup,
            forced_acceptance=forced,
            content=Content() if block_spread is None else Content(block_spread=block_spread),
        )
        bench_filled(session, filled, head=bench_head(session), as_json=json_output)
        return
    board = live_board()
    if board is None and power is not None:
        note(f"--power {power} is not checked: this machine is no board")
    settle = (BOARD_WARMUP_S if board else 0.0) if warmup_seconds is None else warmup_seconds
    options = _options(session, wanted, forced, repeats=repeats, warmup=warmup, warmup_s=settle)
    cases, tokens = _cases(
        session, options, lengths, tokens=tokens, prompt=prompt, prompt_file=prompt_file
    )
    _bench(session, options, cases, tokens=tokens, as_json=json_output, board=(board, power))


def _on_files(action: str, files: list[Path], *, output: Path | None, as_json: bool) -> None:
    from selfdraft.cli.bench_compare import print_comparison
    from selfdraft.cli.bench_report import print_report

    if action == "compare":
        print_comparison(files, as_json=as_json)
    else:
        print_report(files, output=output)


def _options(
    session: Session,
    drafts: tuple[int, ...] | None,
    forced: tuple[float, ...] | None,
    *,
    repeats: int,
    warmup: int,
    warmup_s: float,
) -> MeasureOptions:
    from selfdraft.cli.measure import MeasureOptions

    chosen = (session.default_drafts,) if drafts is None else drafts
    check_forced(forced, chosen)
    return MeasureOptions(
        drafts=chosen,
        repeats=repeats,
        warmup=warmup,
        warmup_s=warmup_s,
        forced_acceptance=forced,
    )


def _forced(text: str | None) -> tuple[float, ...] | None:
    return numbers("--force-acceptance", text, float, 0, 1)


def check_forced(forced: tuple[float, ...] | None, drafts: Sequence[int]) -> None:
    """A coin for every draft position, or none at all. Raises ``ConfigError``."""
    if forced is not None and len(forced) < max(drafts, default=0):
        raise ConfigError(
            f"--force-acceptance has {len(forced)} values for {max(drafts)} drafts",
            hint="give one value for each draft position: --force-acceptance 0.87,0.7",
        )


def _cases(
    session: Session,
    options: MeasureOptions,
    lengths: tuple[int, ...] | None,
    *,
    tokens: int | None,
    prompt: str | None,
    prompt_file: Path | None,
) -> tuple[list[BenchCase], int]:
    """What to measure, and the tokens of each run."""
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
    return cases, tokens


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
    board: tuple[BoardReader | None, str | None],
) -> None:
    """``board``: what to watch, and the power mode it must be in."""
    from selfdraft.cli.bench_head import bench_head
    from selfdraft.cli.bench_record import HEADER, BenchSetting, bench_record, bench_row
    from selfdraft.cli.board_meter import board_head, watched
    from selfdraft.cli.measure import compare

    head = bench_head(session)
    rows = []
    for case in cases:
        reader, asked_mode = board
        with (
            stage_progress(quiet=as_json) as on_stage,
            watched(reader, asked_mode=asked_mode) as run,
        ):
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
        setting = BenchSetting(
            head={**head, **board_head(run), "asked_mode": asked_mode},
            manifest=session.bundle.manifest,
            context=case.context,
            tokens=tokens,
            prompt_source=case.source,
            board=run,
        )
        for series in measured:
            record = bench_record(series, measured[0], options, setting)
            if as_json:
                print_json_line(record)
            rows.append(bench_row(record))
        _tell_invalid(record)
    if not as_json:
        threads = f", {head['threads']} threads" if head["threads"] else ""
        say(f"{head['cpu']}{threads}, {head['backend']}")
        say(table(rows, header=HEADER))


def _tell_invalid(record: dict[str, Any]) -> None:
    for reason in record["invalid_reasons"] or ():
        note(f"invalid run: {reason}")


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


def check_room(session: Session, length: int, what: str) -> None:
    """Refuse what does not fit the bundle's context. Raises ``ResourceError``."""
    limit = session.bundle.manifest.limits.context_length
    if length > limit:
        raise ResourceError(
            f"{what} do not fit the context of {limit}",
            hint="lower --context or --tokens, or export with a larger --context",
        )
