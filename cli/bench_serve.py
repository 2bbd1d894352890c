"""``selfdraft bench serve``: a server under load, with and without speculation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfdraft.cli.options import (
    BackendOption,
    ContextOption,
    SlotsOption,
    ThreadsOption,
    is_typed,
)
from selfdraft.errors import ConfigError

_LOAD = "Load"
_SERVER = "Server"
DEFAULT_CLIENTS = "1,2,4"
OF_STARTED_SERVER = ("drafts", "slots", "backend", "threads", "context")
"""Options that a server at --url was given when it was started."""


def command(
    ctx: typer.Context,
    bundle: Annotated[
        Path | None,
        typer.Argument(
            metavar="[BUNDLE]",
            help="Bundle to serve and measure; left out with --url.",
            show_default=False,
        ),
    ] = None,
    clients: Annotated[
        str | None,
        typer.Option(
            "--clients",
            metavar="N,N,…",
            help="Closed loop: so many clients, each of which waits for its reply.",
            show_default="1,2,4 without --rate",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate",
            metavar="R,R,…",
            help="Open loop: so many requests a second on average, at times of a Poisson process.",
            show_default=False,
            rich_help_panel=_LOAD,
        ),
    ] = None,
    requests: Annotated[
        int,
        typer.Option(
            "--requests",
            min=1,
            max=10_000,
            metavar="N",
            help="Requests of each load in a round.",
            rich_help_panel=_LOAD,
        ),
    ] = 16,
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds",
            min=1,
            max=1000,
            metavar="N",
            help="Rounds of each load, in which plain decoding and drafts take turns. Their servers "
            "run side by side; with 1 they run one after the other.",
            rich_help_panel=_LOAD,
        ),
    ] = 3,
    tokens: Annotated[
        int,
        typer.Option(
            "--tokens",
            min=2,
            metavar="N",
            help="Tokens of each reply.",
            rich_help_panel=_LOAD,
        ),
    ] = 64,
    seed: Annotated[
        int,
        typer.Option(
            "--seed",
            min=0,
            metavar="N",
            help="Of the times of arrival.",
            rich_help_panel=_LOAD,
        ),
    ] = 0,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help="Prompts to send, one a line.",
            show_default="the bundle's examples",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", help="Continue the prompts, without chat template.", rich_help_panel=_LOAD
        ),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            min=1,
            metavar="S",
            help="Seconds without a word after which a request counts as failed.",
            rich_help_panel=_LOAD,
        ),
    ] = 600.0,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="Measure a server that runs already, on this machine.",
            show_default=False,
            rich_help_panel=_SERVER,
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            envvar="SELFDRAFT_API_KEY",
            metavar="KEY",
            help="Key of the server.",
            show_default=False,
            rich_help_panel=_SERVER,
        ),
    ] = None,
    drafts: Annotated[
        str | None,
        typer.Option(
            "--drafts",
            metavar="K|auto,…",
            help="Drafts of a step; plain decoding always runs too.",
            show_default="auto with an MTP head",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    slots: SlotsOption = 4,
    backend: BackendOption = "auto",
    threads: ThreadsOption = None,
    context: ContextOption = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON line a load on stdout.")
    ] = False,
) -> None:
    """Measure a server under load: time to the first token, between tokens, and throughput.

    Starts servers on loopback ports, plain and with drafts, which are measured in turns. Traffic
    goes to this machine only (docs/benchmarking.md).

    \b
    Examples:
      selfdraft bench serve BUNDLE --clients 1,2,4,8
      selfdraft bench serve BUNDLE --rate 0.5,1,2 --requests 100 --rounds 1 --json
      selfdraft bench serve --url http://127.0.0.1:8000 --clients 4
    """
    from selfdraft.cli.bench_serve_run import ServedBy, Traffic, bench_serve
    from selfdraft.cli.load.traffic import Point
    from selfdraft.cli.numbers import numbers

    counts = numbers("--clients", clients, int, 1, 512)
    rates = numbers("--rate", rate, float, 0.001, 1000)
    if counts is None and rates is None:
        counts = numbers("--clients", DEFAULT_CLIENTS, int, 1, 512)
    if counts is not None and requests < max(counts):
        raise ConfigError(
            f"--requests {requests} is less than one for each of {max(counts)} clients",
            hint=f"give each a few: --requests {4 * max(counts)}",
        )
    if (bundle is None) == (url is None):
        raise ConfigError(
            "give a bundle to serve, or --url of a server that runs: one of the two",
            hint="selfdraft bench serve BUNDLE",
        )
    typed = [f"--{name}" for name in OF_STARTED_SERVER if is_typed(ctx, name)]
    if url is not None and typed:
        raise ConfigError(
            f"{typed[0]} is for a server that is started here", hint="leave it out with --url"
        )
    traffic = Traffic(
        points=(
            *(Point(clients=count) for count in counts or ()),
            *(Point(rate=each) for each in rates or ()),
        ),
        requests=requests,
        rounds=rounds,
        tokens=tokens,
        seed=seed,
        prompts=prompts,
        raw=raw,
        timeout_s=timeout,
        api_key=api_key,
    )
    by = ServedBy(
        bundle=bundle,
        url=url,
        drafts=drafts,
        slots=slots,
        backend=backend,
        threads=threads,
        context=context,
    )
    bench_serve(traffic, by, as_json=json_output)
