"""``selfdraft advise``: which way of decoding suits a model, a board and a need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from selfdraft.cli.console import print_json
from selfdraft.cli.options import JsonOption
from selfdraft.cli.plan import (
    AcceptanceOption,
    ContextOption,
    DraftVocabOption,
    HeadOption,
    KvOption,
    ModelArg,
    WeightsOption,
    one_of,
    planned_choices,
    planned_context,
)
from selfdraft.cli.planned_target import AvailableOption, DeviceOption, PowerOption
from selfdraft.errors import ConfigError

if TYPE_CHECKING:
    from selfdraft.jetson.planner.advice import MeasuredSpeed

GOALS: tuple[Literal["latency", "throughput", "quality"], ...] = (
    "latency",
    "throughput",
    "quality",
)


def command(
    model: ModelArg,
    device: DeviceOption = "agx-orin-64",
    goal: Annotated[
        str,
        typer.Option(
            "--goal",
            metavar="latency|throughput|quality",
            help="One quick reply, many replies, or the best reply.",
        ),
    ] = "latency",
    offline: Annotated[
        bool, typer.Option("--offline", help="Nobody waits for the reply as it is written.")
    ] = False,
    sampled: Annotated[
        bool,
        typer.Option("--sampled", help="Replies may vary; else the same prompt gives the same."),
    ] = False,
    exact_attention: Annotated[
        bool,
        typer.Option("--exact-attention", help="Rule out sparse attention, an approximation."),
    ] = False,
    context: ContextOption = None,
    weights: WeightsOption = None,
    head: HeadOption = None,
    kv: KvOption = None,
    acceptance: AcceptanceOption = None,
    draft_vocab: DraftVocabOption = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured",
            metavar="FILE",
            help="Lines of selfdraft bench --json on this board, in place of planned speeds.",
            show_default=False,
        ),
    ] = None,
    power: PowerOption = None,
    available: AvailableOption = None,
    json_output: JsonOption = False,
) -> None:
    """Advise a way of decoding, with tokens per second, memory and the reason.

    \b
    Examples:
      selfdraft advise BUNDLE --device orin-nx-16 --context 8192
      selfdraft advise BUNDLE --goal throughput --sampled
      selfdraft advise BUNDLE --measured bench.jsonl --json
    """
    from selfdraft.cli.advise_text import advice_record, print_advice
    from selfdraft.cli.planned_model import planned_model
    from selfdraft.cli.planned_target import planned_target
    from selfdraft.jetson.planner.advice import Need, advise
    from selfdraft.jetson.planner.advice_table import decision_table

    need = Need(
        goal=one_of("--goal", goal, GOALS),
        timing="offline" if offline else "online",
        output="sampled" if sampled else "deterministic",
        approximate_allowed=not exact_attention,
    )
    planned = planned_model(model, draft_vocab=draft_vocab)
    board = planned_target(device, power=power, available_gib=available)
    choices = planned_choices(
        planned,
        context=planned_context(planned, context),
        weights=weights,
        head=head,
        kv=kv,
        drafts=None,
        acceptance=acceptance,
        batch=1,
    )
    advice = advise(
        planned.spec,
        planned.geometry,
        choices,
        board.target,
        need=need,
        table=decision_table(),
        measured=read_measured(measured) if measured else None,
    )
    if json_output:
        print_json(advice_record(advice, planned, board, choices))
    else:
        print_advice(advice, planned, board, choices)


def read_measured(path: Path) -> MeasuredSpeed:
    """Median speed by drafts from lines of ``selfdraft bench --json``.

    Of several contexts the longest counts. Raises ``ConfigError`` for a file that holds no plain
    line, an invalid run, or forced acceptance.
    """
    from selfdraft.cli.bench_schema import read_lines
    from selfdraft.jetson.planner.advice import MeasuredSpeed

    lines = read_lines(path)
    longest = max(line.context for line in lines)
    kept = [line for line in lines if line.context == longest]
    speeds = {line.drafts: line.tok_per_s.median for line in kept}
    faults = {
        "forced acceptance": any(line.synthetic for line in kept),
        "an invalid run": any(line.valid is False for line in kept),
        "no plain run": 0 not in speeds,
    }
    for what, is_so in faults.items():
        if is_so:
            raise ConfigError(
                f"{path} holds {what}", hint=f"selfdraft bench BUNDLE --json > {path}"
            )
    return MeasuredSpeed(tok_per_s=speeds)
