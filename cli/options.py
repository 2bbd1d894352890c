"""Options that several commands share, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def is_typed(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line itself.

    One that comes from the environment or a file is meant for every command it suits, so a command
    that has no use for it leaves it out instead of refusing it.
    """
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


InspectedArg = Annotated[
    Path,
    typer.Argument(
        metavar="BUNDLE|CHECKPOINT",
        help="Folder of a bundle or a checkpoint, or a hub name: ORG/NAME[@REVISION].",
        show_default=False,
    ),
]
CheckpointArg = Annotated[
    Path,
    typer.Argument(
        metavar="CHECKPOINT",
        help="Folder with config.json and safetensors files, or a hub name: ORG/NAME[@REVISION].",
        show_default=False,
    ),
]
BundleArg = Annotated[
    Path,
    typer.Argument(
        metavar="BUNDLE",
        help="Bundle folder, as written by: selfdraft export.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
BackendOption = Annotated[
    str,
    typer.Option(
        "--backend",
        envvar="SELFDRAFT_BACKEND",
        metavar="auto|ort|tensorrt|reference",
        help="Engine; auto takes TensorRT for a bundle of a board, else ONNX Runtime.",
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        envvar="SELFDRAFT_THREADS",
        min=1,
        metavar="N",
        help="Threads of the engine.",
        show_default="all cores",
    ),
]
SlotsOption = Annotated[
    int,
    typer.Option(
        "--slots",
        envvar="SELFDRAFT_SLOTS",
        min=1,
        max=64,
        metavar="N",
        help="Requests that run at once; each has caches of its own.",
    ),
]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "--context",
        envvar="SELFDRAFT_CONTEXT",
        min=2,
        metavar="N",
        help="Tokens of prompt and reply together.",
        show_default="the bundle's limit",
    ),
]
ChunkOption = Annotated[
    int | None,
    typer.Option(
        "--chunk",
        min=1,
        metavar="N",
        help="Prompt tokens computed at a time.",
        show_default="the bundle's",
    ),
]
PrefillOption = Annotated[
    str,
    typer.Option(
        "--prefill",
        metavar="dense|sparse",
        help="Attention of the prompt; sparse needs a sparse bundle, and is quicker and less exact.",
    ),
]
BitExactOption = Annotated[
    bool,
    typer.Option(
        "--bit-exact",
        help="Run every step with the same padded rows, so that drafts cannot change a rounding.",
    ),
]
SaveCacheOption = Annotated[
    Path | None,
    typer.Option(
        "--save-cache",
        metavar="FILE",
        help="Keep the cache of prompt and reply for later runs.",
        show_default=False,
    ),
]
LoadCacheOption = Annotated[
    Path | None,
    typer.Option(
        "--load-cache",
        metavar="FILE",
        help="Go on from a saved cache: only what differs from it is computed.",
        show_default=False,
    ),
]
AUTO_DRAFTS = "auto"


def _number_of_drafts(text: object) -> int | str:
    """A number of drafts, or ``auto``; anything else is a mistake of usage."""
    said = str(text)
    if said == AUTO_DRAFTS:
        return said
    if said.isdecimal() and int(said) <= 8:
        return int(said)
    raise typer.BadParameter(f"{said!r} is not 0 to 8")


def _fixed_drafts(
    context: typer.Context, parameter: typer.CallbackParam, value: int | str | None
) -> int | str | None:
    """``auto`` of environment or file is meant for commands that have it; these take their default."""
    if value != AUTO_DRAFTS:
        return value
    if not is_typed(context, parameter.name or ""):
        return None
    raise typer.BadParameter("this command takes 0 to 8 drafts, not auto")


DraftsOption = Annotated[
    int | None,
    typer.Option(
        "--drafts",
        parser=_number_of_drafts,
        callback=_fixed_drafts,
        envvar="SELFDRAFT_DRAFTS",
        metavar="K",
        help="Drafts of a step, 0 to 8; 0 decodes plainly. auto in the variable is the default here.",
        show_default="1 with an MTP head, else 0",
    ),
]


def _checked_drafts(text: str | None) -> str | None:
    """Refuse what is neither a number of drafts nor ``auto``, as a mistake of usage."""
    if text is None or text == AUTO_DRAFTS or (text.isdecimal() and int(text) <= 8):
        return text
    raise typer.BadParameter(f"{text!r} is neither 0 to 8 nor auto")


AutoDraftsOption = Annotated[
    str | None,
    typer.Option(
        "--drafts",
        callback=_checked_drafts,
        envvar="SELFDRAFT_DRAFTS",
        metavar="K|auto",
        help="Drafts of a step, 0 to 8; auto follows acceptance and cost, 0 decodes plainly.",
        show_default="auto",
    ),
]
MaxTokensOption = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        envvar="SELFDRAFT_MAX_TOKENS",
        min=1,
        metavar="N",
        help="Tokens of a reply at most.",
        show_default="as many as the context holds",
    ),
]
ModeOption = Annotated[
    str | None,
    typer.Option(
        "--mode",
        metavar="greedy|match|rejection",
        help="Verification: the likeliest token, the seeded draw, or a test of drawn drafts.",
        show_default="greedy at temperature 0, else match",
    ),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        metavar="T",
        help="0 is greedy.",
        show_default="the model's, else 0",
    ),
]
TopKOption = Annotated[
    int | None,
    typer.Option("--top-k", metavar="N", help="Draw among the N likeliest; 0: all."),
]
TopPOption = Annotated[
    float | None,
    typer.Option("--top-p", metavar="P", help="Draw among the likeliest that make up P; 1: all."),
]
MinPOption = Annotated[
    float | None,
    typer.Option("--min-p", metavar="P", help="Drop tokens below P times the likeliest; 0: none."),
]
SeedOption = Annotated[
    int | None,
    typer.Option(
        "--seed",
        envvar="SELFDRAFT_SEED",
        metavar="N",
        help="Same seed, same tokens, with any number of drafts.",
        show_default="a new one each time",
    ),
]
AuditEveryOption = Annotated[
    int | None,
    typer.Option(
        "--audit-every",
        min=1,
        metavar="N",
        help="Run every Nth step densely too and record the difference; no token changes.",
        show_default=False,
    ),
]
StopOption = Annotated[
    list[str] | None,
    typer.Option(
        "--stop-token",
        metavar="ID|TEXT",
        help="End the reply at this token too; may be repeated.",
        show_default=False,
    ),
]
TaskOption = Annotated[
    str,
    typer.Option(
        "--task",
        envvar="SELFDRAFT_TASK",
        metavar="LABEL",
        help="Kind of text, by which telemetry counts and alerts judge.",
    ),
]
TelemetryOption = Annotated[
    Path | None,
    typer.Option(
        "--telemetry",
        envvar="SELFDRAFT_TELEMETRY",
        metavar="FILE",
        help="Write counts and alerts after each reply: JSON lines, or Prometheus text (.prom).",
        show_default=False,
    ),
]
SystemOption = Annotated[
    str | None,
    typer.Option("--system", metavar="TEXT", help="System prompt.", show_default=False),
]
TemplateArgOption = Annotated[
    list[str] | None,
    typer.Option(
        "--template-arg",
        metavar="NAME=VALUE",
        help="Variable of the chat template; VALUE is JSON or text. May be repeated.",
        show_default=False,
    ),
]
