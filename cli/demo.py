"""``selfdraft demo``: the whole path once, on the checkpoint that ships with the sources."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfdraft.cli.console import ReplyWriter, note, print_json, say, stage_progress, table
from selfdraft.cli.environment import program_name
from selfdraft.cli.options import DraftsOption, JsonOption, ThreadsOption

if TYPE_CHECKING:
    from selfdraft.cli.measure import Series
    from selfdraft.cli.reply import Reply
    from selfdraft.cli.session import Session
    from selfdraft.runtime.request import Request

SCHEMA = "selfdraft.demo/1"
MAX_TOKENS = 200
MEASURED_PROMPTS = 6


def command(
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROMPT]",
            help="What to ask; - reads it from stdin.",
            show_default="an example of the model",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            envvar="SELFDRAFT_DEMO_CHECKPOINT",
            metavar="CHECKPOINT",
            help="Checkpoint to use: a folder or a hub name.",
            show_default="demo/checkpoint of the sources",
        ),
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(
            "--home",
            envvar="SELFDRAFT_HOME",
            metavar="FOLDER",
            help="Folder that keeps the bundle.",
            show_default="~/.cache/selfdraft",
        ),
    ] = None,
    drafts: DraftsOption = None,
    threads: ThreadsOption = None,
    json_output: JsonOption = False,
) -> None:
    """Export the demo checkpoint, answer a prompt, and measure plain against speculative.

    The bundle is kept, and made again only when the checkpoint changed.

    \b
    Example:
      selfdraft demo "What is the capital of France?"
    """
    from selfdraft.cli.demo_bundle import cache_folder, demo_bundle, find_checkpoint
    from selfdraft.cli.session import EngineOptions, open_session

    source = find_checkpoint(checkpoint)
    bundle = demo_bundle(source, cache_folder(home), quiet=json_output)
    session = open_session(bundle, EngineOptions(threads=threads, drafts=drafts))
    _run(session, prompt, as_json=json_output)


def _run(session: Session, prompt: str | None, *, as_json: bool) -> None:
    from selfdraft.cli.prompts import read_prompt
    from selfdraft.cli.reply import reply_record

    text = read_prompt(prompt) if prompt else _example(session)
    request = _request(session, text)
    reply = _answer(session, text, request, as_json=as_json)
    examples = session.bundle.manifest.text.examples[:MEASURED_PROMPTS]
    requests = [_request(session, example) for example in examples] or [request]
    measured = _measure(session, requests, quiet=as_json)
    path = session.bundle.path
    if as_json:
        record = reply_record(reply, bundle=str(path), prompt_ids=request.prompt_ids)
        print_json({"schema": SCHEMA, "reply": record, "measured": _measured(measured)})
        return
    _print_measured(measured, num_prompts=len(requests))
    say(
        "\nThis model is tiny: a pass of its head costs nearly as much as one of the model, so drafts usually\n"
        "cost more than they gain here. What they bring to larger models: docs/benchmarks.md."
    )
    program = program_name()
    say(
        f"\nnext:\n  {program} chat {path} --drafts 1\n  {program} inspect {path}\n"
        f"  {program} bench {path} --drafts 1,2,3"
    )


def _answer(session: Session, text: str, request: Request, *, as_json: bool) -> Reply:
    from selfdraft.cli.reply import stream_reply, summary_line
    from selfdraft.runtime.thought_split import reply_tags

    if as_json:
        return stream_reply(session.loop(), request, show=lambda _piece: None)
    tags = reply_tags(session.tokenizer, request)
    note(f"> {text}")
    writer = ReplyWriter()
    reply = stream_reply(session.loop(), request, show=writer.write, tags=tags)
    writer.finish()
    note(summary_line(reply.result))
    return reply


def _measure(session: Session, requests: list[Request], *, quiet: bool) -> list[Series]:
    """Plain and speculative decoding of the same requests; nothing where replies are too short."""
    from selfdraft.cli.measure import MeasureOptions, compare

    longest = max(len(r.prompt_ids) for r in requests) + MAX_TOKENS
    drafts = session.default_drafts
    with stage_progress(quiet=quiet) as on_stage:
        measured = compare(
            session,
            requests,
            MeasureOptions(drafts=(drafts,) if drafts else ()),
            context=min(longest, session.bundle.manifest.limits.context_length),
            on_stage=on_stage,
        )
    return measured if all(series.step_s for series in measured) else []


def _request(session: Session, prompt: str) -> Request:
    """Greedy, through the chat template."""
    from selfdraft.cli.prompts import ReplyOptions, SamplingOptions, prompt_ids, reply_request

    options = ReplyOptions(sampling=SamplingOptions(mode="greedy"), max_tokens=MAX_TOKENS)
    return reply_request(session, prompt_ids(session, prompt, options, raw=False), options)


def _example(session: Session) -> str:
    examples = session.bundle.manifest.text.examples
    return examples[0] if examples else "Hello!"


def _measured(series: list[Series]) -> list[dict[str, Any]]:
    from selfdraft.cli.measure import spread

    return [
        {
            "drafts": s.drafts,
            "tok_per_s": spread(s.tok_per_s),
            "tokens_per_step": s.tokens_per_step,
            "acceptance": s.acceptance,
        }
        for s in series
    ]


def _print_measured(measured: list[Series], *, num_prompts: int) -> None:
    from selfdraft.cli.measure import spread
    from selfdraft.cli.reply import ordinal

    if not measured:
        note("the replies are too short to measure a speed")
        return
    plain = spread(measured[0].tok_per_s)["median"]
    rows = []
    for series in measured:
        speed = spread(series.tok_per_s)["median"]
        accepted = ", ".join(
            f"{ordinal(i)} {100 * good / drafted:.0f} %"
            for i, (drafted, good) in enumerate(series.acceptance, start=1)
            if drafted
        )
        name = f"{series.drafts} draft{'s' * (series.drafts > 1)}" if series.drafts else "plain"
        rows.append(
            (
                name,
                f"{speed:.1f}",
                f"{speed / plain:.2f}",
                f"{series.tokens_per_step:.2f}",
                accepted,
            )
        )
    header = ("", "tokens/s", "× plain", "tokens/step", "accepted")
    prompts = "one prompt" if num_prompts == 1 else f"{num_prompts} prompts"
    say(f"\nmeasured now on {prompts}, in turns:")
    say(table(rows, header=header))
