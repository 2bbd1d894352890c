"""``selfdraft serve``: answer requests over HTTP, by OpenAI's API."""

from __future__ import annotations

from typing import Annotated

import typer

from selfdraft.cli.options import (
    AutoDraftsOption,
    BackendOption,
    BitExactOption,
    BundleArg,
    ChunkOption,
    ContextOption,
    JsonOption,
    PrefillOption,
    SlotsOption,
    ThreadsOption,
)

_LIMITS = "Limits"
_ADDRESS = "Address"


def command(
    bundle: BundleArg,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            envvar="SELFDRAFT_HOST",
            metavar="ADDRESS",
            help="Address to listen at; 0.0.0.0 lets other machines in.",
            rich_help_panel=_ADDRESS,
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port",
            envvar="SELFDRAFT_PORT",
            min=0,
            max=65535,
            metavar="N",
            help="Port; 0 takes any free one.",
            rich_help_panel=_ADDRESS,
        ),
    ] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            envvar="SELFDRAFT_API_KEY",
            metavar="KEY",
            help="Key that clients must send. Others on this machine can read a command line: prefer "
            "the variable.",
            show_default=False,
            rich_help_panel=_ADDRESS,
        ),
    ] = None,
    model_name: Annotated[
        str | None,
        typer.Option(
            "--model-name",
            envvar="SELFDRAFT_MODEL_NAME",
            metavar="NAME",
            help="Name of the model in the API.",
            show_default="the bundle's",
            rich_help_panel=_ADDRESS,
        ),
    ] = None,
    max_waiting: Annotated[
        int,
        typer.Option(
            "--max-waiting",
            envvar="SELFDRAFT_MAX_WAITING",
            min=0,
            metavar="N",
            help="Requests that may wait for a slot; more are refused (429).",
            rich_help_panel=_LIMITS,
        ),
    ] = 64,
    queue_timeout: Annotated[
        float | None,
        typer.Option(
            "--queue-timeout",
            envvar="SELFDRAFT_QUEUE_TIMEOUT",
            min=0.001,
            metavar="S",
            help="Seconds that a request may wait for a slot.",
            show_default="any time",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    request_timeout: Annotated[
        float | None,
        typer.Option(
            "--request-timeout",
            envvar="SELFDRAFT_REQUEST_TIMEOUT",
            min=0.001,
            metavar="S",
            help="Seconds that a request may take in all.",
            show_default="any time",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            envvar="SELFDRAFT_MAX_TOKENS",
            min=1,
            metavar="N",
            help="Tokens of a reply at most, and where a request does not say.",
            show_default="as many as the context holds",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    max_body: Annotated[
        int,
        typer.Option(
            "--max-body",
            envvar="SELFDRAFT_MAX_BODY",
            min=1,
            metavar="KIB",
            help="KiB of a request's body at most.",
            rich_help_panel=_LIMITS,
        ),
    ] = 4096,
    max_connections: Annotated[
        int,
        typer.Option(
            "--max-connections",
            envvar="SELFDRAFT_MAX_CONNECTIONS",
            min=1,
            metavar="N",
            help="Open connections at most; more are refused (503).",
            rich_help_panel=_LIMITS,
        ),
    ] = 512,
    drain: Annotated[
        float,
        typer.Option(
            "--drain",
            envvar="SELFDRAFT_DRAIN",
            min=0,
            max=3600,
            metavar="S",
            help="Seconds that running replies may go on at a shutdown.",
            rich_help_panel=_LIMITS,
        ),
    ] = 30.0,
    slots: SlotsOption = 4,
    drafts: AutoDraftsOption = None,
    chunk: ChunkOption = None,
    prefill: PrefillOption = "dense",
    bit_exact: BitExactOption = False,
    backend: BackendOption = "auto",
    threads: ThreadsOption = None,
    context: ContextOption = None,
    json_output: JsonOption = False,
) -> None:
    """Answer requests over HTTP by OpenAI's API, several at once (docs/serving.md).

    Listens on this machine only, unless --host says otherwise. Ctrl-C or SIGTERM ends it: running
    replies may finish first. --json prints a line with the address once it listens.

    \b
    Examples:
      selfdraft serve BUNDLE --slots 4
      SELFDRAFT_API_KEY=... selfdraft serve BUNDLE --host 0.0.0.0 --port 8080
    """
    from selfdraft.cli.serve_run import require_server, serve_bundle
    from selfdraft.cli.session import EngineOptions, drafts_choice
    from selfdraft.runtime.serving.options import ServingOptions

    require_server()
    from selfdraft.cli.serving.settings import ServerSettings

    engine = EngineOptions(
        backend=backend,
        threads=threads,
        drafts=drafts_choice(drafts),
        context=context,
        chunk=chunk,
        prefill=prefill,
        bit_exact=bit_exact,
    )
    settings = ServerSettings(
        host=host,
        port=port,
        api_key=api_key,
        model_name=model_name,
        max_body_bytes=max_body * 1024,
        max_tokens=max_tokens,
        max_connections=max_connections,
        drain_s=drain,
    )
    options = ServingOptions(
        max_waiting=max_waiting,
        queue_timeout_s=queue_timeout,
        request_timeout_s=request_timeout,
    )
    serve_bundle(bundle, engine, settings, options, slots=slots, as_json=json_output)
