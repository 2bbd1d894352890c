"""``selfdraft generate``: complete or answer one prompt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfdraft.cli.options import (
    AuditEveryOption,
    AutoDraftsOption,
    BackendOption,
    BitExactOption,
    BundleArg,
    ChunkOption,
    ContextOption,
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
    TaskOption,
    TelemetryOption,
    TemperatureOption,
    TemplateArgOption,
    ThreadsOption,
    TopKOption,
    TopPOption,
    is_typed,
)
from selfdraft.cli.shape_options import (
    BudgetPromptOption,
    EarlyStoppingOption,
    GrammarOption,
    JsonSchemaOption,
    LengthPenaltyOption,
    NumBeamsOption,
    RegexOption,
    ThinkEndOption,
    ThinkingBudgetOption,
    ThinkStartOption,
    WrapUpOption,
)
from selfdraft.cli.token_options import (
    AllowTokenOption,
    BadWordOption,
    BanTokenOption,
    EveryOption,
    FrequencyPenaltyOption,
    KeepStopOption,
    LogitBiasOption,
    LogprobsOption,
    MaxChunksOption,
    MinTokensOption,
    NoRepeatNgramOption,
    PresencePenaltyOption,
    RepetitionPenaltyOption,
    ResumeOption,
    StopTextOption,
)
from selfdraft.errors import ConfigError

if TYPE_CHECKING:
    from selfdraft.cli.cache_files import CacheFiles
    from selfdraft.cli.chunked import ChunkOptions
    from selfdraft.cli.prompts import ReplyOptions
    from selfdraft.cli.reply import Piece
    from selfdraft.cli.session import Session
    from selfdraft.runtime.beam_search import BeamOptions
    from selfdraft.runtime.request import Request


def command(
    ctx: typer.Context,
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
    drafts: AutoDraftsOption = None,
    mode: ModeOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    min_p: MinPOption = None,
    seed: SeedOption = None,
    stop_token: StopOption = None,
    thinking_budget: ThinkingBudgetOption = None,
    wrap_up: WrapUpOption = None,
    budget_prompt: BudgetPromptOption = None,
    think_start: ThinkStartOption = None,
    think_end: ThinkEndOption = None,
    json_schema: JsonSchemaOption = None,
    regex: RegexOption = None,
    grammar: GrammarOption = None,
    num_beams: NumBeamsOption = None,
    length_penalty: LengthPenaltyOption = None,
    early_stopping: EarlyStoppingOption = None,
    stop: StopTextOption = None,
    keep_stop: KeepStopOption = False,
    min_tokens: MinTokensOption = 0,
    repetition_penalty: RepetitionPenaltyOption = 1.0,
    frequency_penalty: FrequencyPenaltyOption = 0.0,
    presence_penalty: PresencePenaltyOption = 0.0,
    logit_bias: LogitBiasOption = None,
    ban_token: BanTokenOption = None,
    allow_token: AllowTokenOption = None,
    bad_word: BadWordOption = None,
    no_repeat_ngram: NoRepeatNgramOption = 0,
    logprobs: LogprobsOption = None,
    every: EveryOption = None,
    max_chunks: MaxChunksOption = None,
    resume: ResumeOption = False,
    chunk: ChunkOption = None,
    prefill: PrefillOption = "dense",
    bit_exact: BitExactOption = False,
    save_cache: SaveCacheOption = None,
    load_cache: LoadCacheOption = None,
    backend: BackendOption = "auto",
    threads: ThreadsOption = None,
    context: ContextOption = None,
    audit_every: AuditEveryOption = None,
    task: TaskOption = "default",
    telemetry: TelemetryOption = None,
    no_stream: Annotated[
        bool, typer.Option("--no-stream", help="Print the text when it is complete.")
    ] = False,
    show_provenance: Annotated[
        bool,
        typer.Option("--show-provenance", help="Mark what the MTP head drafted."),
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Complete or answer one prompt; the answer streams to stdout, thoughts to stderr.

    \b
    Examples:
      selfdraft generate BUNDLE "Why is the sky blue?" --max-tokens 200
      cat notes.txt | selfdraft generate BUNDLE - --drafts 2 --json
      selfdraft generate BUNDLE "Plan a walk." --thinking-budget 64
      cat book.txt | selfdraft generate BUNDLE - --max-tokens 1 --save-cache book.cache
    """
    from selfdraft.cli.beams import BeamChoice, refuse_with_beams
    from selfdraft.cli.cache_files import CacheFiles
    from selfdraft.cli.chunked import ChunkOptions
    from selfdraft.cli.prompts import ReplyOptions, SamplingOptions, read_prompt
    from selfdraft.cli.reply_shape import StructureOptions, ThinkingOptions
    from selfdraft.cli.reply_tokens import TokenOptions, check_logprobs
    from selfdraft.cli.session import EngineOptions, drafts_choice, open_session
    from selfdraft.manifest import require_bundle

    sampling = SamplingOptions(
        mode=mode, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed
    )
    reply = ReplyOptions(
        sampling=sampling,
        max_tokens=max_tokens,
        stop_tokens=tuple(stop_token or ()),
        system=system,
        template_args=tuple(template_arg or ()),
        task=task,
        thinking=ThinkingOptions(
            budget=thinking_budget,
            wrap_up=wrap_up,
            prompt=budget_prompt,
            start=think_start,
            end=think_end,
        ),
        structure=StructureOptions(json_schema=json_schema, regex=regex, grammar=grammar),
        tokens=TokenOptions(
            stop=stop,
            keep_stop=keep_stop,
            min_tokens=min_tokens,
            repetition_penalty=repetition_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            logit_bias=logit_bias,
            ban_token=ban_token,
            allow_token=allow_token,
            bad_word=bad_word,
            no_repeat_ngram=no_repeat_ngram,
            logprobs=logprobs,
        ),
    )
    chunks = ChunkOptions(every=every, max_chunks=max_chunks, resume=resume)
    if resume and (
        prompt is not None
        or replace(reply, max_tokens=None) != ReplyOptions(sampling=SamplingOptions())
    ):
        raise ConfigError(
            "--resume goes on with the prompt and the options of the stopped reply",
            hint="leave out all others but --max-tokens",
        )
    require_bundle(bundle)  # what is taken for one may be the prompt
    text = "" if resume else read_prompt(prompt)
    files = CacheFiles(load=load_cache, save=save_cache)
    beams = BeamChoice(
        num_beams=num_beams, length_penalty=length_penalty, early_stopping=early_stopping
    ).options()
    if beams is not None:
        refuse_with_beams(
            {
                "--temperature": temperature,
                f"--mode {mode}": mode not in (None, "greedy"),
                "--top-k": top_k,
                "--top-p": top_p,
                "--min-p": min_p,
                "--seed": seed is not None and is_typed(ctx, "seed"),
                "--drafts": drafts and is_typed(ctx, "drafts"),
                "--thinking-budget": thinking_budget is not None,
                "--json-schema": json_schema,
                "--regex": regex,
                "--grammar": grammar,
                "--chunk": chunk,
                "--prefill sparse": prefill == "sparse",
                "--bit-exact": bit_exact,
                "--save-cache": save_cache,
                "--load-cache": load_cache,
                "--audit-every": audit_every,
                "--task": task != "default" and is_typed(ctx, "task"),
                "--telemetry": telemetry,
                "--show-provenance": show_provenance,
                "--every": every,
                "--resume": resume,
                **reply.tokens.chosen(),
            },
            streaming=not (no_stream or json_output),
        )
    session = open_session(
        bundle,
        EngineOptions(
            backend=backend,
            threads=threads,
            drafts=drafts_choice(drafts),
            context=context,
            chunk=chunk,
            audit_every=audit_every,
            prefill=prefill,
            bit_exact=bit_exact,
        ),
    )
    check_logprobs(logprobs, as_json=json_output)
    shown = Shown(
        stream=not no_stream,
        provenance=show_provenance,
        as_json=json_output,
        telemetry=telemetry,
    )
    _generate(session, text, reply, raw=raw, shown=shown, files=files, chunks=chunks, beams=beams)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How the reply is shown."""

    stream: bool
    provenance: bool
    as_json: bool
    telemetry: Path | None


def _generate(
    session: Session,
    prompt: str,
    options: ReplyOptions,
    *,
    raw: bool,
    shown: Shown,
    files: CacheFiles,
    beams: BeamOptions | None,
    chunks: ChunkOptions,
) -> None:
    from selfdraft.cli.chunked import resumed_request, stream_chunks
    from selfdraft.cli.console import ReplyWriter, note, print_json_line, prompt_progress
    from selfdraft.cli.prompts import prompt_ids, reply_request
    from selfdraft.cli.reply import cut_text, reply_record, stream_reply, summary_line
    from selfdraft.cli.reply_telemetry import ReplyTelemetry
    from selfdraft.cli.session import NEVER_PAYS
    from selfdraft.runtime.thought_split import reply_tags

    if raw and (options.system or options.template_args or options.thinking.prompt):
        raise ConfigError(
            "--raw applies no chat template, so --system, --template-arg and --budget-prompt "
            "mean nothing",
            hint="leave out --raw or the others",
        )
    if beams is not None:
        ids = prompt_ids(session, prompt, options, raw=raw)
        _search(session, reply_request(session, ids, options), beams, shown=shown)
        return
    telemetry = ReplyTelemetry(session, shown.telemetry)
    loop = session.loop(telemetry=telemetry.meter)
    saved = files.restore(loop, session)
    if chunks.resume:
        request = resumed_request(saved, max_tokens=options.max_tokens)
    else:
        ids = prompt_ids(session, prompt, options, raw=raw)
        request = reply_request(session, ids, options)
    writer = ReplyWriter(provenance=shown.provenance)
    live = shown.stream and not shown.as_json
    pieces: list[Piece] = []
    show = writer.write if live else pieces.append
    tags = reply_tags(session.tokenizer, request)
    kept: dict[str, str] = {}
    try:
        if chunks.every is None:
            reply = stream_reply(loop, request, show=show, tags=tags, on_prefill=prompt_progress)
        else:
            reply, kept = stream_chunks(
                loop, request, chunks, show=show, tags=tags, on_prefill=prompt_progress
            )
    finally:
        if live:
            writer.finish()
    if shown.as_json:
        print_json_line(
            reply_record(reply, bundle=str(session.bundle.path), prompt_ids=request.prompt_ids)
        )
    else:
        if not live:
            for piece in pieces:
                writer.write(piece)
            writer.finish()
        note(summary_line(reply.result))
        if session.never_pays(loop):
            note(NEVER_PAYS)
    telemetry.after(request.task, reply.result)
    if cut := cut_text(reply, request):
        note(cut)
    files.keep(loop, session, extra=kept)


def _search(session: Session, request: Request, beams: BeamOptions, *, shown: Shown) -> None:
    from selfdraft.cli.beams import beam_pieces, beam_record, beam_summary, search
    from selfdraft.cli.console import ReplyWriter, note, print_json_line

    result = search(session, request, beams)
    if shown.as_json:
        print_json_line(beam_record(session, result, request))
        return
    writer = ReplyWriter()
    for piece in beam_pieces(session, result.beams[0].tokens, request):
        writer.write(piece)
    writer.finish()
    note(beam_summary(result))
