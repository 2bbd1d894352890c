"""``selfdraft chat``: talk with a model, turn by turn."""

from __future__ import annotations

from typing import Annotated

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
)
from selfdraft.cli.shape_options import (
    BudgetPromptOption,
    GrammarOption,
    JsonSchemaOption,
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
    FrequencyPenaltyOption,
    KeepStopOption,
    LogitBiasOption,
    LogprobsOption,
    MinTokensOption,
    NoRepeatNgramOption,
    PresencePenaltyOption,
    RepetitionPenaltyOption,
    StopTextOption,
)


def command(
    bundle: BundleArg,
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
    show_provenance: Annotated[
        bool,
        typer.Option("--show-provenance", help="Mark what the MTP head drafted."),
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Talk with a model, turn by turn; caches are kept between turns.

    Ctrl-C stops a reply; at the prompt it quits. With stdin from a pipe each line is a message.
    --json prints one record a reply. A cache saved by chat brings its conversation along.

    \b
    Commands in the chat: /help /reset /stats /save FILE /quit
    Example:
      selfdraft chat BUNDLE --system "Answer in one sentence." --drafts 2
    """
    from selfdraft.cli.cache_files import CacheFiles
    from selfdraft.cli.chat_loop import Chat, ChatView
    from selfdraft.cli.prompts import ReplyOptions, SamplingOptions
    from selfdraft.cli.reply_shape import StructureOptions, ThinkingOptions
    from selfdraft.cli.reply_tokens import TokenOptions, check_logprobs
    from selfdraft.cli.session import EngineOptions, drafts_choice, open_session

    check_logprobs(logprobs, as_json=json_output)
    sampling = SamplingOptions(
        mode=mode, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed
    )
    options = ReplyOptions(
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
    engine = EngineOptions(
        backend=backend,
        threads=threads,
        drafts=drafts_choice(drafts),
        context=context,
        chunk=chunk,
        audit_every=audit_every,
        prefill=prefill,
        bit_exact=bit_exact,
    )
    files = CacheFiles(load=load_cache, save=save_cache)
    view = ChatView(provenance=show_provenance, as_json=json_output, telemetry=telemetry)
    raise typer.Exit(Chat(open_session(bundle, engine), options, view, files).run())
