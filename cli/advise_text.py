"""An advice as plain values, and for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from selfdraft.cli.console import bytes_text, say, table
from selfdraft.cli.plan_record import BASIS, device_record, memory_record
from selfdraft.jetson.planner.advice import Advice, Option
from selfdraft.jetson.planner.plan import Choices

if TYPE_CHECKING:
    from selfdraft.cli.planned_model import PlannedModel
    from selfdraft.cli.planned_target import PlannedTarget

SCHEMA = "selfdraft.advice/1"


def advice_record(
    advice: Advice, model: PlannedModel, board: PlannedTarget, choices: Choices
) -> dict[str, Any]:
    """Everything that ``selfdraft advise`` tells."""
    chosen = advice.chosen
    return {
        "schema": SCHEMA,
        "basis": BASIS,
        "model": model.geometry.name,
        "device": device_record(board),
        "context": choices.workload.context,
        "facts": asdict(advice.facts),
        "strategy": advice.chosen.strategy.name,
        "options": command_options(advice),
        "command": chosen.strategy.command,
        "why": advice.why,
        "attention": advice.attention,
        "attention_why": advice.attention_why,
        "sparse_gain": advice.sparse_gain,
        "drafts_gain": advice.drafts_gain,
        "chosen": _option(advice.chosen),
        "considered": [_option(option) for option in advice.options],
        "not_there": [
            {**asdict(missing.absent), "extra_bytes": missing.extra_bytes, "basis": "estimate"}
            for missing in advice.not_there
        ],
    }


def command_options(advice: Advice) -> list[str]:
    """Options of the strategy's command that ask for it."""
    chosen = advice.chosen
    return chosen.strategy.words(advice.facts.output, drafts=chosen.drafts, batch=chosen.batch)


def print_advice(
    advice: Advice, model: PlannedModel, board: PlannedTarget, choices: Choices
) -> None:
    """The strategy first, then what it was chosen from."""
    context = choices.workload.context
    chosen = advice.chosen
    say(f"{model.geometry.name} on {board.module.title}, {board.mode.name}, {context} tokens")
    say(f"\n{_named(chosen)}: {advice.why}")
    say(f"  {_rate(chosen)}, {bytes_text(chosen.memory.total_bytes)} of memory")
    say(f"  gives: {chosen.strategy.gives}")
    say(f"  costs: {chosen.strategy.costs}")
    words = " ".join(command_options(advice))
    say(f"  how: selfdraft {chosen.strategy.command} BUNDLE {words}")
    gain = f"≈ {advice.sparse_gain:.2f} of the speed with full attention"
    say(f"{advice.attention} attention: {advice.attention_why} (sparse: {gain})")
    if advice.attention == "sparse" and model.attention is None:
        say("  this model is dense: export it with --attention sparse")
    if not chosen.fits:
        say(f"this does not fit: selfdraft plan --device {board.module.name} tells what would help")
    say("\nconsidered")
    say(table([_row(option) for option in advice.options]))
    say("\nnot in selfdraft")
    for missing in advice.not_there:
        absent = missing.absent
        say(f"  {absent.name}: {absent.brings}")
        say(f"    costs: {absent.costs} (≈ {bytes_text(missing.extra_bytes)} more weights)")
    say(f"\n{BASIS}")


def _option(option: Option) -> dict[str, Any]:
    return {
        "strategy": option.strategy.name,
        "drafts": option.drafts,
        "batch": option.batch,
        "tok_per_s": option.tok_per_s,
        "basis": option.basis,
        "memory": memory_record(option.memory),
    }


def _row(option: Option) -> tuple[str, str, str, str]:
    fits = "fits" if option.fits else "does not fit"
    return (
        f"  {_named(option)}",
        _rate(option),
        bytes_text(option.memory.total_bytes),
        fits,
    )


def _named(option: Option) -> str:
    counts = []
    if option.drafts:
        counts.append(f"K = {option.drafts}")
    if option.batch > 1:
        counts.append(
            f"{option.batch} beams" if option.strategy.wide else f"{option.batch} at once"
        )
    return option.strategy.title + (f" ({', '.join(counts)})" if counts else "")


def _rate(option: Option) -> str:
    mark = "" if option.basis == "measured" else "≈ "
    return f"{mark}{option.tok_per_s:.1f} tok/s"
