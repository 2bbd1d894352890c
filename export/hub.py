"""Names of the Hugging Face hub (``org/name[@revision]``) wherever a checkpoint folder is asked for.

The download is the library's own: into its cache, resumed where it was cut short. A snapshot folder
bears the commit it holds, which the manifest records.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from selfdraft.errors import ConfigError, DeviceError

HUB_NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
COMMIT = re.compile(r"[0-9a-f]{40}")
FILES = (
    "*.json",
    "*.safetensors",
    "*.jinja",
    "README.md",
    "LICENSE*",
    "NOTICE*",
)
"""What an export reads; pickles and code are not fetched."""


def local_checkpoint(checkpoint: Path) -> Path:
    """The folder of a checkpoint; a hub name is downloaded unless a path of that name exists.

    Raises ``DeviceError`` without huggingface_hub, ``ConfigError`` when the download fails.
    """
    match = HUB_NAME.fullmatch(checkpoint.as_posix())
    if match is None or checkpoint.exists():
        return checkpoint
    return Path(_download(match["name"], match["revision"]))


def snapshot_commit(path: Path) -> str | None:
    """The commit of a snapshot in a hub cache, or None elsewhere."""
    resolved = path.resolve()
    known = resolved.parent.name == "snapshots" and COMMIT.fullmatch(resolved.name)
    return resolved.name if known else None


def _download(name: str, revision: str | None) -> str:
    library = _library(name)
    try:
        folder: str = library.snapshot_download(name, revision=revision, allow_patterns=list(FILES))
    except (OSError, ValueError) as error:
        at = f" at {revision}" if revision else ""
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(
            f"{name}{at} cannot be fetched from the hub: {first}",
            hint="check name, revision and network, log in with: hf auth login; or give a folder",
        ) from None
    return folder


def _library(name: str) -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise DeviceError(
            f"{name} is no folder here, and huggingface_hub is not installed to fetch it",
            hint="pip install 'selfdraft[hub]', or give the checkpoint's folder",
        ) from None
    return huggingface_hub
