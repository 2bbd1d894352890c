"""``selfdraft generate``: complete or answer one prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from selfdraft.cli.options import (
    BackendOption,
    BundleArg,
    ChunkOption,
    ContextOption,
    DraftsOption,
    JsonOption,
    MaxTokensOption,
    MinPOption,
    ModeOption,
    SeedOption,
    StopOption,
    SystemOption,
    TemperatureOption,
    TemplateArgOption,
    ThreadsOption,
    TopKOption,
    TopPOption,
)

if TYPE_CHECKING:
    from selfdraft.cli.session import EngineOptions
    from selfdraft.runtime.request import Request


def command(
    bundle: BundleArg,
    prompt: Annotated[
        str | None,
        typer.Argument(help="The prompt; - reads it from stdin.", show_default=False),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Do not apply the chat template.")] = False,
    system: SystemOption = None,
    template_arg: TemplateArgOption = None,
    max_tokens: MaxTokensOption = None,
    drafts: DraftsOption = None,
    mode: ModeOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    min_p: MinPOption = None,
    seed: SeedOption = None,
    stop_token: StopOption = None,
    chunk: ChunkOption = None,
    backend: BackendOption = "ort",
    threads: ThreadsOption = None,
    context: ContextOption = None,
    no_stream: Annotated[
        bool, typer.Option("--no-stream", help="Print the text when it is complete.")
    ] = False,
    show_provenance: Annotated[
        bool,
        typer.Option("--show-provenance", help="Mark what the MTP head drafted."),
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Complete or answer one prompt; the text streams to stdout.

    \b
    Examples:
      selfdraft generate BUNDLE "Why is the sky blue?" --max-tokens 200
      cat notes.txt | selfdraft generate BUNDLE - --drafts 2 --json
    """
    from selfdraft.cli.prompts import SamplingOptions
    from selfdraft.cli.session import EngineOptions

    engine = EngineOptions(
        backend=backend, threads=threads, drafts=drafts, context=context, chunk=chunk
    )
