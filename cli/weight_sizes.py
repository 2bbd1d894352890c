"""Bytes of a bundle's weights by part, from the headers of its files."""

from __future__ import annotations

import json
from pathlib import Path

from selfdraft.errors import BundleError
from selfdraft.manifest import Manifest
from selfdraft.runtime.pruned import pruned_files

PARTS = {
    "mtp.draft_head": "draft_head",
    "mtp.draft_ids": "draft_head",
    "mtp": "mtp",
    "lm_head": "lm_head",
    "embedding": "embedding",
    "backbone": "backbone",
}
"""Prefix of a tensor's name, and its part; the first match counts."""


def bytes_by_part(bundle: Path, manifest: Manifest) -> dict[str, int]:
    """Stored bytes of each part that the bundle has; pruned files count nothing."""
    sizes: dict[str, int] = {}
    gone = {name for name in pruned_files(bundle) if not (bundle / name).exists()}
    for file in {manifest.embedding_file, manifest.weights_file} - gone:
        for name, size in tensor_bytes(bundle / file).items():
            part = next((p for prefix, p in PARTS.items() if name.startswith(prefix)), "other")
            sizes[part] = sizes.get(part, 0) + size
    return {part: sizes[part] for part in sorted(sizes, key=sizes.__getitem__, reverse=True)}


def tensor_bytes(path: Path) -> dict[str, int]:
    """Bytes of each tensor of a safetensors file; only its header is read."""
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            header = json.loads(stream.read(length))
        spans = {k: v["data_offsets"] for k, v in header.items() if k != "__metadata__"}
        return {name: int(end) - int(start) for name, (start, end) in spans.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BundleError(
            f"{path} cannot be read: {error}", hint="export the bundle again"
        ) from None
