"""Bundles whose graph weights were deleted once their engines were built."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from selfdraft.errors import BundleError

if TYPE_CHECKING:
    from selfdraft.runtime.bundle import Bundle

PRUNED_FILE = "engines/pruned.json"
"""Names of the files that are gone on purpose."""


def prune(bundle: Bundle) -> list[str]:
    """Delete the weights that only graphs read; the names, written down before."""
    names = [bundle.manifest.weights_file]
    record = bundle.path / PRUNED_FILE
    partial = record.with_name(f".{record.name}.partial-{os.getpid()}")
    try:
        partial.write_text(json.dumps({"files": names}) + "\n", encoding="utf-8")
        os.replace(partial, record)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    for name in names:
        bundle.file(name).unlink(missing_ok=True)
    return names


def pruned_files(path: Path) -> frozenset[str]:
    """Files of the bundle at ``path`` that were pruned. Raises ``BundleError``."""
    record = path / PRUNED_FILE
    try:
        data = json.loads(record.read_text(encoding="utf-8"))
        return frozenset(str(name) for name in data["files"])
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(
            f"{record} cannot be read: {error}", hint="copy the bundle to this machine again"
        ) from None
