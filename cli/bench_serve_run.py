"""Runs the loads of ``selfdraft bench serve`` on its servers, in turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfdraft.cli.bench_serve_record import (
    HEADER,
    Setting,
    load_text,
    serve_record,
    serve_row,
    speedup,
)
from selfdraft.cli.console import OnStage, note, print_json_line, say, stage_progress, table
from selfdraft.cli.load.address import Address, loopback_address
from selfdraft.cli.load.asking import QUESTIONS, num_slots, sender, served_model
from selfdraft.cli.load.figures import load_figures
from selfdraft.cli.load.started import started_server
from selfdraft.cli.load.traffic import Point, Send, Sent, run_point
from selfdraft.cli.text_files import read_utf8
from selfdraft.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    from selfdraft.manifest import Manifest

MAX_DRAFTS = 8
LEAST_WAITING = 64
WARMUP = 2
"""Requests before the counted ones, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What is sent."""

    points: tuple[Point, ...]
    requests: int
    """Of each point in a round."""
    rounds: int
    tokens: int
    seed: int
    prompts: Path | None
    raw: bool
    timeout_s: float
    api_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBy:
    """The server: one of our own for ``bundle``, or the one at ``url``."""

    bundle: Path | None
    url: str | None
    drafts: str | None
    slots: int
    backend: str
    threads: int | None
    context: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A server that listens and has answered."""

    send: Send
    setting: Setting


def bench_serve(traffic: Traffic, by: ServedBy, *, as_json: bool) -> None:
    """Measure, and print a JSON line or a table row for each load.

    Raises ``ConfigError`` for options that cannot be, ``DeviceError`` where no request is answered.
    """
    manifest = _manifest(by.bundle)
    prompts = _prompts(traffic.prompts, manifest)
    modes = _drafts(by, manifest)
    # Servers that take turns are there at once; without turns, memory holds one at a time.
    groups = [modes] if traffic.rounds > 1 else [(mode,) for mode in modes]
    records: list[dict[str, Any]] = []
    with stage_progress(quiet=as_json) as on_stage:
        for group in groups:
            with ExitStack() as stack:
                contenders = [
                    stack.enter_context(_contender(traffic, by, manifest, prompts, drafts=drafts))
                    for drafts in group
                ]
                for record in _measured(traffic, contenders, on_stage=on_stage):
                    records.append(record)
                    record["speedup"] = speedup(record, records)
                    if as_json:
                        print_json_line(record)
    if not as_json:
        _print_table(records)
    for error in dict.fromkeys(error for record in records for error in record["errors"]):
        note(f"failed requests: {error}")


def _print_table(records: list[dict[str, Any]]) -> None:
    first = records[0]
    threads = f", {first['threads']} threads" if first["threads"] else ""
    say(f"{first['model']}, {first['slots'] or 'unknown'} slots, {first['cpu']}{threads}")
    say(table([serve_row(record) for record in records], header=HEADER))


def _measured(
    traffic: Traffic, contenders: Sequence[Contender], *, on_stage: OnStage
) -> Iterator[dict[str, Any]]:
    """The records of each load; in every round the contenders take turns, in the other order each time."""
    first = WARMUP
    for point in traffic.points:
        found: list[list[list[Sent]]] = [[] for _ in contenders]
        for turn in range(traffic.rounds):
            on_stage(load_text(point), turn, traffic.rounds)
            order = range(len(contenders))
            for index in order if turn % 2 == 0 else reversed(order):
                sent = run_point(
                    contenders[index].send,
                    point,
                    requests=traffic.requests,
                    first=first,
                    seed=traffic.seed + turn,
                )
                found[index].append(sent)
            first += traffic.requests
        for contender, rounds in zip(contenders, found, strict=True):
            yield serve_record(point, load_figures(rounds), contender.setting)


@contextmanager
def _contender(
    traffic: Traffic,
    by: ServedBy,
    manifest: Manifest | None,
    prompts: tuple[str, ...],
    *,
    drafts: str | None,
) -> Iterator[Contender]:
    """The server at the URL, or one that is started for the context; it is warm."""
    with _listening(traffic, by, manifest, drafts=drafts) as (address, setting):
        send = sender(
            address,
            prompts,
            tokens=traffic.tokens,
            chat=not traffic.raw and (manifest is None or manifest.text.chat_template is not None),
            api_key=traffic.api_key,
            timeout_s=traffic.timeout_s,
        )
        warm = run_point(send, Point(clients=1), requests=WARMUP, first=0, seed=traffic.seed)
        figures = load_figures([warm])
        if not figures["ok"]:
            why = figures["errors"] or ["it is overloaded"]
            raise DeviceError(f"the server answers no request: {why[0]}", hint="see what it says")
        yield Contender(send=send, setting=setting)


@contextmanager
def _listening(
    traffic: Traffic, by: ServedBy, manifest: Manifest | None, *, drafts: str | None
) -> Iterator[tuple[Address, Setting]]:
    """Where the server listens, and what its records have in common."""
    common = {
        "requests": traffic.requests,
        "rounds": traffic.rounds,
        "tokens": traffic.tokens,
        "seed": traffic.seed,
        "prompt_source": str(traffic.prompts or "examples"),
    }
    if by.url is not None:
        address = loopback_address(by.url)
        facts = {
            "model": served_model(address, api_key=traffic.api_key),
            "slots": num_slots(address),
        }
        yield address, Setting.of_server(facts, common)
        return
    assert by.bundle is not None and manifest is not None and drafts is not None
    with started_server(by.bundle, *_options(traffic, by, drafts)) as server:
        setting = Setting.of_bundle(by.bundle, manifest, server.facts, common, drafts=drafts)
        yield server.address, setting


def _options(traffic: Traffic, by: ServedBy, drafts: str) -> list[object]:
    # A closed loop never meets a full queue; arrivals may.
    waiting = max([LEAST_WAITING, *(point.clients or 0 for point in traffic.points)])
    options: list[object] = ["--slots", by.slots, "--drafts", drafts, "--backend", by.backend]
    options += ["--max-waiting", waiting]
    options += ["--threads", by.threads] if by.threads is not None else []
    options += ["--context", by.context] if by.context is not None else []
    return options


def _manifest(bundle: Path | None) -> Manifest | None:
    if bundle is None:
        return None
    from selfdraft.manifest import load_manifest

    return load_manifest(bundle)


def _prompts(file: Path | None, manifest: Manifest | None) -> tuple[str, ...]:
    """Prompts of the file, else the bundle's examples, else plain questions."""
    if file is None:
        return tuple((manifest.text.examples if manifest else ()) or QUESTIONS)
    text = read_utf8(file, hint="give a UTF-8 text, a prompt a line")
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ConfigError(f"{file} is empty", hint="give a prompt a line")
    return tuple(lines)


def _drafts(by: ServedBy, manifest: Manifest | None) -> tuple[str | None, ...]:
    """Numbers of drafts to serve with, plain first; None: the server at the URL knows."""
    if manifest is None:
        return (None,)
    given = [part.strip() for part in (by.drafts or "auto").split(",")]
    for part in given:
        if part != "auto" and not (part.isdecimal() and int(part) <= MAX_DRAFTS):
            raise ConfigError(
                f"--drafts has {part!r}", hint=f"choose from 0 to {MAX_DRAFTS} and auto"
            )
    if not manifest.has_mtp:
        if by.drafts is not None and set(given) != {"0"}:
            raise ConfigError(
                "--drafts: this bundle has no MTP head", hint="leave --drafts out, or give 0"
            )
        given = []
    return tuple(dict.fromkeys(["0", *given]))
