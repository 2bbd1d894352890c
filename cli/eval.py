"""``selfdraft eval``: retrieval and acceptance at length, without downloads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfdraft.cli.options import (
    BackendOption,
    BundleArg,
    ChunkOption,
    DraftsOption,
    JsonOption,
    TemplateArgOption,
    ThreadsOption,
    is_typed,
)
from selfdraft.errors import ConfigError

if TYPE_CHECKING:
    from selfdraft.cli.eval_command import EvalRequest

KINDS = ("needle", "ruler", "acceptance")


def _known_kind(kind: str) -> str:
    """Refuse what is none before anything else is missed: a bundle alone is taken for a kind."""
    from selfdraft.strict import closest_hint

    if kind not in KINDS:
        raise ConfigError(
            f"unknown evaluation {kind!r}{closest_hint(kind, KINDS)}",
            hint=f"choose one of: {', '.join(KINDS)}, and give a bundle behind it",
        )
    return kind


def command(
    ctx: typer.Context,
    kind: Annotated[
        str,
        typer.Argument(
            metavar="|".join(KINDS),
            callback=_known_kind,
            help="What to measure.",
            show_default=False,
        ),
    ],
    bundle: BundleArg,
    lengths: Annotated[
        str | None,
        typer.Option(
            "--lengths",
            metavar="N,N,…",
            help="needle, ruler: prompt lengths in tokens.",
            show_default="1024,2048",
        ),
    ] = None,
    depths: Annotated[
        str | None,
        typer.Option(
            "--depths",
            metavar="D,D,…",
            help="needle: places in the text, 0 to 1.",
            show_default="0.1,0.3,0.5,0.7,0.9",
        ),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            "--keys",
            metavar="N,N,…",
            help="needle: facts in the text, of which one is asked for.",
            show_default="1,4",
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option("--tasks", metavar="NAME,…", help="ruler: tasks.", show_default="all"),
    ] = None,
    dense_question: Annotated[
        bool,
        typer.Option(
            "--dense-question", help="needle, ruler: let the question attend to everything."
        ),
    ] = False,
    wording: Annotated[
        str,
        typer.Option(
            "--wording", metavar="plain|demo|FILE", help="How texts and questions are worded."
        ),
    ] = "plain",
    template_arg: TemplateArgOption = None,
    context: Annotated[
        int | None,
        typer.Option(
            "--context",
            min=2,
            metavar="N",
            help="acceptance: tokens of the text.",
            show_default="the bundle's limit, less a reply",
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            "--text",
            metavar="FILE",
            help="acceptance: text to continue.",
            show_default="filler of the wording",
        ),
    ] = None,
    bucket: Annotated[
        int | None,
        typer.Option(
            "--bucket",
            min=1,
            metavar="N",
            help="acceptance: positions that share a line.",
            show_default="4096",
        ),
    ] = None,
    drafts: DraftsOption = None,
    trials: Annotated[
        int, typer.Option("--trials", min=1, metavar="N", help="Questions, or places, of each.")
    ] = 5,
    tokens: Annotated[
        int, typer.Option("--tokens", min=2, metavar="N", help="Tokens of a reply.")
    ] = 32,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Draws the texts.")] = 0,
    chunk: ChunkOption = None,
    backend: BackendOption = "auto",
    threads: ThreadsOption = None,
    json_output: JsonOption = False,
) -> None:
    """Measure retrieval, sparse against dense, or acceptance by position.

    needle plants facts by depth, ruler runs RULER-style tasks; both print the score of sparse
    attention beside that of dense attention in the same run. acceptance continues a text
    greedily from places all along it.

    \b
    Examples:
      selfdraft eval needle BUNDLE --lengths 4096,32768 --trials 10
      selfdraft eval acceptance BUNDLE --context 32768 --text book.txt --drafts 3
    """
    from selfdraft.cli.eval_command import ACCEPTANCE, EvalRequest, run_eval

    request: EvalRequest = EvalRequest(
        kind=kind,
        lengths=lengths,
        depths=depths,
        keys=keys,
        tasks=tasks,
        dense_question=dense_question,
        context=context,
        text=text,
        bucket=bucket,
        drafts=drafts if kind == ACCEPTANCE or is_typed(ctx, "drafts") else None,
        wording=wording,
        template_args=tuple(template_arg or ()),
        trials=trials,
        tokens=tokens,
        seed=seed,
    )
    run_eval(bundle, request, chunk=chunk, backend=backend, threads=threads, as_json=json_output)
