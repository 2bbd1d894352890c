"""The kernels to build, with the limits they must keep: ``kernels.json`` of each op's folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from selfdraft.strict import record_from_json

PACKAGE = "selfdraft.trt_plugins"
LIST_NAME = "kernels.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEntry:
    """One ``__global__`` function: how it is launched, and what it may take."""

    threads: int
    """Threads of a block, as launched."""
    dynamic_shared_bytes: int
    """Shared memory given at launch (the most, where launches differ)."""
    min_blocks_per_sm: int
    """Blocks that must fit on one multiprocessor at once."""
    max_registers: int
    max_spill_bytes: int = 0
    reason: str = ""
    """Why a limit is laxer than the rule (no spills, two blocks): shown in the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSource:
    """One file that is compiled by itself, and its kernels by entry name."""

    source: str
    """Path within the op's folder."""
    kernels: dict[str, KernelEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelList:
    """Contents of one ``kernels.json``."""

    sources: tuple[KernelSource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A source of one op on this machine."""

    op: str
    """Name of the op's folder."""
    path: Path
    kernels: dict[str, KernelEntry]


def plugin_folder() -> Path:
    """Folder of the ops: include path of every kernel."""
    return Path(str(files(PACKAGE)))


def kernel_sources(folder: Path | None = None) -> list[SourceFile]:
    """Every source of every op below ``folder`` (ours by default), in a fixed order."""
    found = []
    for path in sorted((folder or plugin_folder()).glob(f"*/{LIST_NAME}")):
        data = json.loads(path.read_text(encoding="utf-8"))
        listed = record_from_json(KernelList, data, where=f"{path.parent.name}/{LIST_NAME}")
        found += [
            SourceFile(op=path.parent.name, path=path.parent / item.source, kernels=item.kernels)
            for item in listed.sources
        ]
    return found
