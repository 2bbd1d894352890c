"""Runs the loads of ``selfdraft bench serve`` on one server after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfdraft.cli.bench_serve_record import HEADER, Setting, load_text, serve_record, serve_row
from selfdraft.cli.console import note, print_json_line, say, stage_progress, table
from selfdraft.cli.load.address import Address, loopback_address
from selfdraft.cli.load.asking import QUESTIONS, num_slots, sender, served_model
from selfdraft.cli.load.figures import load_figures
from selfdraft.cli.load.started import started_server
from selfdraft.cli.load.traffic import Point, run_point
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
    """Of each point."""
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
class Target:
    """A server that listens."""

    address: Address
    setting: Setting


def bench_serve(traffic: Traffic, by: ServedBy, *, as_json: bool) -> None:
    """Measure, and print a JSON line or a table row for each load.

    Raises ``ConfigError`` for options that cannot be, ``DeviceError`` where no request is answered.
    """
    manifest = _manifest(by.bundle)
    prompts = _prompts(traffic.prompts, manifest)
    chat = not traffic.raw and (manifest is None or manifest.text.chat_template is not None)
    records: list[dict[str, Any]] = []
    with stage_progress(quiet=as_json) as on_stage:
        for drafts in _drafts(by, manifest):
            with _target(traffic, by, manifest, drafts=drafts) as target:
                for record in _measured(traffic, target, prompts, chat=chat, on_stage=on_stage):
                    record["speedup"] = _speedup(record, records)
                    records.append(record)
                    if as_json:
                        print_json_line(record)
    if not as_json:
        first = records[0]
        threads = f", {first['threads']} threads" if first["threads"] else ""
        say(f"{first['model']}, {first['slots'] or 'unknown'} slots, {first['cpu']}{threads}")
        say(table([serve_row(record) for record in records], header=HEADER))
    for error in dict.fromkeys(error for record in records for error in record["errors"]):
        note(f"failed requests: {error}")


def _measured(
    traffic: Traffic, target: Target, prompts: tuple[str, ...], *, chat: bool, on_stage: Any
) -> Iterator[dict[str, Any]]:
    send = sender(
        target.address,
        prompts,
        tokens=traffic.tokens,
        chat=chat,
        api_key=traffic.api_key,
        timeout_s=traffic.timeout_s,
    )
    warm = run_point(send, Point(clients=1), requests=WARMUP, first=0, seed=traffic.seed)
    if not load_figures(warm)["ok"]:
        why = load_figures(warm)["errors"] or ["it is overloaded"]
        raise DeviceError(f"the server answers no request: {why[0]}", hint="see what it says")
    first = WARMUP
    for point in traffic.points:
        on_stage(_stage(point, target.setting.drafts), 0, 1)
        sent = run_point(send, point, requests=traffic.requests, first=first, seed=traffic.seed)
        first += traffic.requests
        yield serve_record(point, load_figures(sent), target.setting)


def _stage(point: Point, drafts: str | None) -> str:
    return load_text(point) if drafts is None else f"drafts {drafts}, {load_text(point)}"


@contextmanager
def _target(
    traffic: Traffic, by: ServedBy, manifest: Manifest | None, *, drafts: str | None
) -> Iterator[Target]:
    """The server at the URL, or one that is started for the context."""
    common = {
        "requests": traffic.requests,
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
        yield Target(address=address, setting=Setting.of_server(facts, common))
        return
    assert by.bundle is not None and manifest is not None and drafts is not None
    with started_server(by.bundle, *_options(traffic, by, drafts)) as server:
        setting = Setting.of_bundle(by.bundle, manifest, server.facts, common, drafts=drafts)
        yield Target(address=server.address, setting=setting)


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
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", hint="give a UTF-8 text") from None
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


def _speedup(record: dict[str, Any], before: list[dict[str, Any]]) -> float | None:
    """Throughput by that of plain decoding under the same load."""
    same = [
        one
        for one in [*before, record]
        if (one["clients"], one["rate"], one["drafts"]) == (record["clients"], record["rate"], "0")
    ]
    if not same or not same[0]["tok_per_s"] or not record["tok_per_s"]:
        return None
    return float(record["tok_per_s"] / same[0]["tok_per_s"])
