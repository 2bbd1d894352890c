"""``selfdraft generate``: complete or answer one prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from selfdraft.cli.options import (
    AuditEveryOption,
    BackendOption,
    BitExactOption,
    BundleArg,
    ChunkOption,
    ContextOption,
    DraftsOption,
    JsonOption,
    LoadCacheOption,
    MaxTokensOption,
    MinPOption,
    ModeOption,
    PrefillOption,
    SaveCacheOption,
    SeedOption,
    StopOption,
    SystemOption,
    TemperatureOption,
    TemplateArgOption,
    ThreadsOption,
    TopKOption,
    TopPOption,
)
from selfdraft.errors import ConfigError

if TYPE_CHECKING:
    from selfdraft.cli.cache_files import CacheFiles
    from selfdraft.cli.prompts import ReplyOptions
    from selfdraft.cli.session import Session


def command(
    bundle: BundleArg,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROMPT]", help="The prompt; - reads it from stdin.", show_default=False
        ),
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
    prefill: PrefillOption = "dense",
    bit_exact: BitExactOption = False,
    save_cache: SaveCacheOption = None,
    load_cache: LoadCacheOption = None,
    backend: BackendOption = "ort",
    threads: ThreadsOption = None,
    context: ContextOption = None,
    audit_every: AuditEveryOption = None,
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
      cat book.txt | selfdraft generate BUNDLE - --max-tokens 1 --save-cache book.cache
    """
    from selfdraft.cli.cache_files import CacheFiles
    from selfdraft.cli.prompts import ReplyOptions, SamplingOptions, read_prompt
    from selfdraft.cli.session import EngineOptions, open_session

    sampling = SamplingOptions(
        mode=mode, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed
    )
    reply = ReplyOptions(
        sampling=sampling,
        max_tokens=max_tokens,
        stop_tokens=tuple(stop_token or ()),
        system=system,
        template_args=tuple(template_arg or ()),
    )
    text = read_prompt(prompt)
    files = CacheFiles(load=load_cache, save=save_cache)
    session = open_session(
        bundle,
        EngineOptions(
            backend=backend,
            threads=threads,
            drafts=drafts,
            context=context,
            chunk=chunk,
            audit_every=audit_every,
            prefill=prefill,
            bit_exact=bit_exact,
        ),
    )
    shown = Shown(stream=not no_stream, provenance=show_provenance, as_json=json_output)
    _generate(session, text, reply, raw=raw, shown=shown, files=files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How the reply is shown."""

    stream: bool
    provenance: bool
    as_json: bool


def _generate(
    session: Session,
    prompt: str,
    options: ReplyOptions,
    *,
    raw: bool,
    shown: Shown,
    files: CacheFiles,
) -> None:
    from selfdraft.cli.console import TextWriter, note, print_json, prompt_progress
    from selfdraft.cli.prompts import prompt_ids, reply_request
    from selfdraft.cli.reply import reply_record, stream_reply, summary_line

    if raw and (options.system or options.template_args):
        raise ConfigError(
            "--raw applies no chat template, so --system and --template-arg mean nothing",
            hint="leave out --raw or the other two",
        )
    ids = prompt_ids(session, prompt, options, raw=raw)
    request = reply_request(session, ids, options)
    loop = session.loop()
    files.restore(loop, session)
    writer = TextWriter(provenance=shown.provenance)
    live = shown.stream and not shown.as_json
    pieces: list[tuple[str, bool]] = []
    show = writer.write if live else lambda text, drafted: pieces.append((text, drafted))
    try:
        reply = stream_reply(loop, request, show=show, on_prefill=prompt_progress)
    finally:
        if live:
            writer.finish()
    if shown.as_json:
        print_json(reply_record(reply, bundle=str(session.bundle.path), prompt_ids=ids))
    else:
        if not live:
            for text, drafted in pieces:
                writer.write(text, drafted)
            writer.finish()
        note(summary_line(reply.result))
    files.keep(loop, session)
