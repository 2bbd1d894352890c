"""Where a checkpoint came from: name, licence and model card, carried into the bundle."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from selfdraft.export.checkpoint import CONFIG_NAME, Checkpoint, read_bytes
from selfdraft.export.families.base import ModelPlan
from selfdraft.export.hub import snapshot_commit
from selfdraft.manifest import SourceSpec

MODEL_CARD = "MODEL_CARD.md"
LICENCE_FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE", "NOTICE.txt")
NO_LICENCE_NOTE = "the checkpoint names no licence: check its source before you pass it on"
CACHE_FOLDER = re.compile(r"models--(.+?)--(.+)")
FRONT_MATTER_LINE = re.compile(r"(license|license_name):\s*['\"]?([^'\"#]+?)['\"]?\s*(#.*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Source record and the files that go with it."""

    spec: SourceSpec
    contents: Mapping[str, bytes]
    notes: tuple[str, ...]


def read_source(checkpoint: Checkpoint, plan: ModelPlan, *, name: str | None) -> Source:
    """Licence from config.json or the card's front matter, card, and licence texts."""
    path = checkpoint.path
    contents = {file: read_bytes(path / file) for file in LICENCE_FILES if (path / file).is_file()}
    card = path / "README.md"
    if card.is_file():
        contents[MODEL_CARD] = read_bytes(card)
    licence = _licence(checkpoint, contents.get(MODEL_CARD))
    spec = SourceSpec(
        name=name or source_name(path),
        architecture=plan.architecture,
        license=licence,
        model_card=MODEL_CARD if MODEL_CARD in contents else None,
        revision=snapshot_commit(path),
        config_sha256=hashlib.sha256(read_bytes(path / CONFIG_NAME)).hexdigest(),
        ignored_tensors=dict(sorted(plan.ignored.items())),
    )
    return Source(spec=spec, contents=contents, notes=() if licence else (NO_LICENCE_NOTE,))


def source_name(path: Path) -> str:
    """The folder's name, or ``owner/name`` for a snapshot in a hub cache."""
    resolved = path.resolve()
    if resolved.parent.name == "snapshots":
        match = CACHE_FOLDER.fullmatch(resolved.parent.parent.name)
        if match:
            return f"{match[1]}/{match[2]}"
    return resolved.name


def _licence(checkpoint: Checkpoint, card: bytes | None) -> str | None:
    said = checkpoint.config.get("license")
    if isinstance(said, str) and said:
        return said
    found = _front_matter((card or b"").decode("utf-8", errors="replace"))
    licence = found.get("license")
    return found.get("license_name", licence) if licence == "other" else licence


def _front_matter(card: str) -> dict[str, str]:
    """``license`` and ``license_name`` from the block between two lines ``---``."""
    lines = card.splitlines()
    found: dict[str, str] = {}
    if not lines or lines[0].strip() != "---":
        return found
    for line in lines[1:]:
        if line.strip() == "---":
            break
        match = FRONT_MATTER_LINE.fullmatch(line.rstrip())
        if match:
            found[match[1]] = match[2]
    return found
