"""``selfdraft inspect CHECKPOINT``: family, geometry, MTP head, bytes, and what export would do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from selfdraft.cli.console import bytes_text, print_json, say, table

SCHEMA = "selfdraft.inspect-checkpoint/1"


def is_checkpoint(path: Path) -> bool:
    """Whether ``path`` is a checkpoint folder or, where nothing is there, a name of the hub."""
    from selfdraft.export.hub import HUB_NAME

    named = HUB_NAME.fullmatch(path.as_posix()) is not None and not path.exists()
    return named or (path / "config.json").is_file()


def show_checkpoint(path: Path, *, as_json: bool) -> None:
    """Print the facts. Raises ``ConfigError`` for a checkpoint that cannot be read."""
    from selfdraft.export.describe import describe_checkpoint
    from selfdraft.export.hub import local_checkpoint

    facts = describe_checkpoint(local_checkpoint(path))
    if as_json:
        print_json({"schema": SCHEMA, **facts})
    else:
        _print(facts)


def _print(facts: dict[str, Any]) -> None:
    at = f" at {facts['revision']}" if facts["revision"] else ""
    types = ", ".join(f"{kind} {bytes_text(size)}" for kind, size in facts["bytes_by_type"].items())
    rows = [
        ("checkpoint", f"{facts['name']}{at}"),
        ("architecture", ", ".join(facts["architectures"] or ["not stated"])),
        ("tensors", f"{facts['tensors']}: {types}"),
    ]
    if facts["packed"]:
        rows.append(("4-bit", _packed_text(facts["packed"])))
    if facts["model"]:
        rows.append(("model", _model_text(facts["model"])))
    rows.append(("MTP head", _mtp_text(facts)))
    say(table(rows))
    if facts["refused"]:
        say(f"\nexport would refuse: {facts['refused']['problem']}")
        say(f"next: {facts['refused']['hint']}")
        return
    say("\nbytes in the checkpoint")
    say(table([(f"  {part}", bytes_text(size)) for part, size in facts["bytes_by_part"].items()]))
    say("\nexport would write at most")
    say(table([(f"  {name}", _export_text(plan)) for name, plan in facts["export"].items()]))
    for name, reason in facts["ignored"].items():
        say(f"left out: {name}: {reason}")
    for text in facts["notes"]:
        say(f"note: {text}")


def _packed_text(packed: dict[str, Any]) -> str:
    order = ", act-order" if packed["act_order"] else ""
    groups = "/".join(map(str, packed["groups"]))
    return f"{packed['method']}: {packed['linears']} linears in groups of {groups}{order}"


def _model_text(model: dict[str, Any]) -> str:
    return (
        f"{model['family']}: {model['num_layers']} layers, hidden {model['hidden_size']}, "
        f"{model['num_heads']}/{model['num_kv_heads']} heads of {model['head_dim']}, "
        f"MLP {model['intermediate_size']}, vocabulary {model['vocab_size']}"
        f"{', tied head' if model['tied_head'] else ''}"
    )


def _mtp_text(facts: dict[str, Any]) -> str:
    mtp = facts["mtp"]
    if not mtp["found"]:
        return f"{'none' if mtp['found'] is False else 'unknown'}: {mtp['why']}"
    wiring = facts["model"]["mtp"]
    tap = f"tap {wiring['tap']}"
    if mtp["disputed_tap"]:
        tap += " (engines disagree: export --calibrate TEXT measures it)"
    return f"{mtp['why']}; {tap}, {wiring['concat']}"


def _export_text(plan: dict[str, Any]) -> str:
    if plan["refused"]:
        return f"nothing: {plan['refused']}"
    block = f" in blocks of {plan['int4_block']}" if plan["int4_block"] else ""
    attention = "" if plan["selectors"] == ["all"] else f", attention {'/'.join(plan['selectors'])}"
    size = bytes_text(plan["disk_bytes_at_most"])
    return f"{size}: {plan['weights']}{block}, context {plan['context_length']}{attention}"
