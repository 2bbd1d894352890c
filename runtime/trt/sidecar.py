"""The record beside a built engine: what it was built from and with, checked before it is loaded.

A plan runs only on the TensorRT, GPU and JetPack that it was built with, and TensorRT tells of
another one only by failing. So every difference is found here, before a byte is deserialised.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Literal

from selfdraft.errors import BundleError
from selfdraft.manifest import MANIFEST_NAME, Manifest
from selfdraft.runtime.bundle import ENGINES_FOLDER, file_sha256
from selfdraft.runtime.trt.library import Creator
from selfdraft.runtime.trt.limits import EngineLimits
from selfdraft.strict import StrictError, record_from_json

log = logging.getLogger(__name__)

SIDECAR_NAME = "engine.json"
TIMING_CACHE = "timing.cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """One serialised engine."""

    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """What the caller knows of the machine; None for what it is not."""

    l4t: str | None = None
    """Release of Jetson Linux."""
    module: str | None = None
    """Name of the Jetson module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """With what a plan was built; all but the multiprocessors must be the same where it runs."""

    tensorrt: str
    gpu: str
    compute_capability: str
    multiprocessors: int
    """Switched on while it was built: power modes of a Jetson switch off some."""
    board: Board
    plugins_sha256: str | None
    """Of the plugin library; None where the graphs need none."""
    manifest_sha256: str
    """Of the bundle's manifest, which has the hash of every file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """Everything that must be known before a plan is read."""

    schema: Literal["selfdraft.engine/1"]
    selfdraft_version: str
    built: Built
    plugins: tuple[Creator, ...]
    """Creators that the plan asks the plugin library for."""
    limits: EngineLimits
    plans: dict[str, PlanFile]
    """By graph."""
    weights: str
    """Precision of the weights, for people."""
    kv: str
    target: str


REASONS = {
    "tensorrt": "TensorRT",
    "gpu": "the GPU",
    "compute_capability": "compute capability",
    "board.l4t": "Jetson Linux",
    "board.module": "the module",
    "plugins_sha256": "the plugin library",
    "manifest_sha256": "the bundle",
}


def device_key(compute_capability: str) -> str:
    """Name of the folder below ``engines``: ``sm87`` for ``8.7``, every Orin."""
    return f"sm{compute_capability.replace('.', '')}"


def engine_folder(bundle: Path, key: str) -> Path:
    """Where the engines of one kind of device lie."""
    return bundle / ENGINES_FOLDER / key


def manifest_sha256(bundle: Path) -> str:
    """What a plan remembers of the bundle."""
    return file_sha256(bundle / MANIFEST_NAME)


def write_sidecar(folder: Path, sidecar: Sidecar) -> None:
    """Write ``engine.json``, last of all files: a folder without it holds no engine."""
    part = folder / f"{SIDECAR_NAME}.part"
    text = json.dumps(dataclasses.asdict(sidecar), indent=1) + "\n"
    part.write_text(text, encoding="utf-8")
    part.replace(folder / SIDECAR_NAME)


def read_sidecar(bundle: Path, key: str) -> Sidecar:
    """The record of the engines for device ``key``. Raises ``BundleError``."""
    path = engine_folder(bundle, key) / SIDECAR_NAME
    mend = build_command(bundle)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return record_from_json(Sidecar, data, where=SIDECAR_NAME)
    except FileNotFoundError:
        others = sorted(p.parent.name for p in path.parent.parent.glob(f"*/{SIDECAR_NAME}"))
        found = f", only for {', '.join(others)}" if others else ""
        raise BundleError(
            f"{bundle} has no engine for this device ({key}){found}", hint=mend
        ) from None
    except (OSError, ValueError, RecursionError, StrictError) as error:
        raise BundleError(f"{path} cannot be read: {error}", hint=mend) from None


def check_sidecar(bundle: Path, sidecar: Sidecar, found: Built) -> None:
    """Raise ``BundleError`` with the first thing that is not as it was when the engine was built."""
    for key, name in REASONS.items():
        then, now = attrgetter(key)(sidecar.built), attrgetter(key)(found)
        if then != now:
            raise BundleError(
                f"the engine of {bundle} was built with {name} {_shown(then)}, here is "
                f"{_shown(now)}",
                hint=build_command(bundle),
            )
    if sidecar.built.multiprocessors != found.multiprocessors:
        log.warning(
            "the engine was built with %d multiprocessors switched on, now there are %d: its kernels "
            "may be slower than ones chosen in this power mode",
            sidecar.built.multiprocessors,
            found.multiprocessors,
        )
    folder = engine_folder(bundle, device_key(found.compute_capability))
    for plan in sidecar.plans.values():
        size = (folder / plan.file).stat().st_size if (folder / plan.file).is_file() else None
        if size != plan.bytes:
            has = "is missing" if size is None else f"has {size} bytes, not {plan.bytes}"
            raise BundleError(f"{folder / plan.file} {has}", hint=build_command(bundle))


def check_graphs(bundle: Path, manifest: Manifest, sidecar: Sidecar) -> None:
    """Raise ``BundleError`` unless there is a plan for each graph."""
    if set(sidecar.plans) != set(manifest.graphs):
        raise BundleError(
            f"the engine of {bundle} has plans for {_listed(sidecar.plans)}, the bundle needs "
            f"{_listed(manifest.graphs)}",
            hint=build_command(bundle),
        )


def build_command(bundle: Path) -> str:
    """What mends every mismatch."""
    return f"build the engine on this device: selfdraft build {bundle}"


def _shown(value: object) -> str:
    text = "none" if value is None else str(value)
    return f"{text[:12]}…" if len(text) == 64 else text


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
