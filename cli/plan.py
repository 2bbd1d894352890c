"""``selfdraft plan``: what a model will take and give on a board, before it is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from selfdraft.cli.console import print_json
from selfdraft.cli.numbers import numbers
from selfdraft.cli.options import JsonOption
from selfdraft.cli.planned_target import AvailableOption, DeviceOption, PowerOption
from selfdraft.errors import ConfigError, ResourceError

if TYPE_CHECKING:
    from selfdraft.cli.planned_model import PlannedModel
    from selfdraft.jetson.planner.plan import Choices, ContextRow, Remedy, Target

Name = TypeVar("Name", bound=str)
PLANNED_WEIGHTS: tuple[Literal["fp16", "int4"], ...] = ("fp16", "int4")
PLANNED_KV: tuple[Literal["fp16", "int8"], ...] = ("fp16", "int8")
LENGTHS = (4096, 8192, 16_384, 32_768, 65_536, 131_072)

ModelArg = Annotated[
    Path,
    typer.Argument(
        metavar="BUNDLE|CHECKPOINT",
        help="Bundle folder, or a checkpoint that has not been exported yet; a hub name: "
        "ORG/NAME[@REVISION].",
        show_default=False,
    ),
]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "--context",
        min=64,
        metavar="N",
        help="Tokens of prompt and reply together.",
        show_default="the model's limit",
    ),
]
WeightsOption = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="fp16|int4",
        help="Weights on the board.",
        show_default="the bundle's; int4 for a checkpoint",
    ),
]
HeadOption = Annotated[
    str | None,
    typer.Option(
        "--head",
        metavar="fp16|int4",
        help="LM head on the board.",
        show_default="that of a bundle for boards, else fp16",
    ),
]
KvOption = Annotated[
    str | None,
    typer.Option(
        "--kv",
        metavar="fp16|int8",
        help="KV cache on the board.",
        show_default="the bundle's, else fp16",
    ),
]
DraftsOption = Annotated[
    int | None,
    typer.Option(
        "--drafts",
        min=0,
        max=8,
        metavar="K",
        help="Drafts of a step.",
        show_default="2 with an MTP head",
    ),
]
AcceptanceOption = Annotated[
    str | None,
    typer.Option(
        "--acceptance",
        metavar="P,P,…",
        help="Share of each draft position accepted where those before it were.",
        show_default="0.8,0.7,0.6, an assumption",
    ),
]
DraftVocabOption = Annotated[
    int | None,
    typer.Option(
        "--draft-vocab",
        min=1,
        metavar="N",
        help="Tokens the MTP head drafts from.",
        show_default="the bundle's, else all",
    ),
]


def command(
    model: ModelArg,
    device: DeviceOption = "agx-orin-64",
    context: ContextOption = None,
    weights: WeightsOption = None,
    head: HeadOption = None,
    kv: KvOption = None,
    drafts: DraftsOption = None,
    acceptance: AcceptanceOption = None,
    draft_vocab: DraftVocabOption = None,
    batch: Annotated[
        int, typer.Option("--batch", min=1, metavar="N", help="Sequences held at once.")
    ] = 1,
    power: PowerOption = None,
    available: AvailableOption = None,
    json_output: JsonOption = False,
) -> None:
    """Plan memory and speed on a board, by context length; nothing is run.

    Weights and caches are exact; figures with ≈ are estimates (docs/planner.md). Ends with exit
    code 4 when the context does not fit.

    \b
    Examples:
      selfdraft plan BUNDLE --device agx-orin-64
      selfdraft plan CHECKPOINT --device orin-nx-16 --context 32768 --kv int8 --drafts 2
      selfdraft plan BUNDLE --device orin-nano-8 --power 15W --available 5.5 --json
    """
    from selfdraft.cli.plan_record import plan_record
    from selfdraft.cli.plan_text import print_plan
    from selfdraft.cli.planned_model import planned_model
    from selfdraft.cli.planned_target import planned_target
    from selfdraft.jetson.planner.plan import context_row, remedies

    planned = planned_model(model, draft_vocab=draft_vocab)
    board = planned_target(device, power=power, available_gib=available)
    wanted = planned_context(planned, context)
    choices = planned_choices(
        planned,
        context=wanted,
        weights=weights,
        head=head,
        kv=kv,
        drafts=drafts,
        acceptance=acceptance,
        batch=batch,
    )
    spec, geometry = planned.spec, planned.geometry
    lengths = [length for length in LENGTHS if length < wanted] + [wanted]
    rows = [
        context_row(spec, geometry, choices, board.target, context=length) for length in lengths
    ]
    fits = rows[-1].memory.fits
    found = () if fits else remedies(spec, geometry, choices, board.target)
    if json_output:
        print_json(plan_record(planned, board, choices, rows, found))
    else:
        print_plan(planned, board, choices, rows, found)
    if not fits:
        raise _too_large(rows[-1], board.target, found)


def planned_choices(
    planned: PlannedModel,
    *,
    context: int,
    weights: str | None,
    head: str | None,
    kv: str | None,
    drafts: int | None,
    acceptance: str | None,
    batch: int,
) -> Choices:
    """Options as the planner takes them. Raises ``ConfigError``."""
    from selfdraft.jetson.planner.memory import Workload
    from selfdraft.jetson.planner.plan import DEFAULT_ACCEPTANCE, Choices

    if drafts and not planned.geometry.mtp:
        raise ConfigError(
            f"--drafts {drafts}: this model has no MTP head", hint="leave --drafts out"
        )
    default_drafts = 2 if planned.geometry.mtp else 0
    workload = Workload(
        context=context,
        batch=batch,
        drafts=default_drafts if drafts is None else drafts,
        prefill_rows=planned.prefill_rows,
    )
    return Choices(
        weights=one_of("--weights", weights or planned.device_weights, PLANNED_WEIGHTS),
        head=one_of("--head", head or planned.device_head, PLANNED_WEIGHTS),
        kv=one_of("--kv", kv or planned.device_kv, PLANNED_KV),
        attention=planned.attention,
        workload=workload,
        acceptance=numbers("--acceptance", acceptance, float, 0, 1) or DEFAULT_ACCEPTANCE,
        stored=planned.stored,
    )


def one_of(option: str, value: str, known: tuple[Name, ...]) -> Name:
    """``value`` as one of the names known. Raises ``ConfigError``."""
    found = next((name for name in known if name == value), None)
    if found is None:
        raise ConfigError(f"{option} is {value!r}", hint=f"choose {' or '.join(known)}")
    return found


def planned_context(planned: PlannedModel, context: int | None) -> int:
    """The context asked for, else the model's limit. Raises ``ConfigError``."""
    if context is not None and context > planned.max_context:
        raise ConfigError(
            f"context is {context}, the model holds {planned.max_context} tokens",
            hint=f"choose up to {planned.max_context}",
        )
    return context or planned.max_context


def _too_large(row: ContextRow, target: Target, found: tuple[Remedy, ...]) -> ResourceError:
    from selfdraft.cli.console import bytes_text

    memory = row.memory
    what, short = "running", -memory.head_room_bytes
    if memory.head_room_bytes >= 0:
        what, short = "building its engine", -memory.build_room_bytes
    enough = next((remedy.change for remedy in found if remedy.fits), None)
    return ResourceError(
        f"a context of {row.context} tokens does not fit: {what} lacks {bytes_text(short)} of "
        f"{bytes_text(target.available_bytes)}",
        hint=f"add {enough}" if enough else "take a smaller model, or a larger module",
    )
