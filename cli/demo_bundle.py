"""The demo's bundle: found, made where it is missing or out of date, and kept."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import selfdraft
from selfdraft.cli.console import note, stage_progress
from selfdraft.errors import ConfigError, ResourceError
from selfdraft.export.hub import local_checkpoint

CHECKPOINT = Path("demo") / "checkpoint"
STAMP = "demo.json"
DEMO_NAME = "selfdraft demo model"


def find_checkpoint(given: Path | None) -> Path:
    """The checkpoint given, else the one in the sources or under the current folder."""
    if given is not None:
        given = local_checkpoint(given)
        if not given.is_dir():
            raise ConfigError(f"{given} is no folder", hint="correct --checkpoint")
        return given
    sources = Path(selfdraft.__file__).parents[2]
    for root in (sources, Path.cwd()):
        if (root / CHECKPOINT / "config.json").is_file():
            return root / CHECKPOINT
    raise ConfigError(
        f"the demo checkpoint is not installed ({CHECKPOINT} in the sources)",
        hint="run it in a clone of the repository, or give --checkpoint CHECKPOINT",
    )


def cache_folder(given: Path | None) -> Path:
    """Folder for what selfdraft keeps: the one given, else below the user's cache."""
    if given is not None:
        return given
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "selfdraft"


def demo_bundle(checkpoint: Path, folder: Path, *, quiet: bool) -> Path:
    """The bundle of ``checkpoint`` in ``folder``, exported when it is not there or changed."""
    bundle, stamp = folder / "demo", folder / STAMP
    wanted = {"checkpoint": _digest(checkpoint), "selfdraft": selfdraft.__version__}
    if _is_current(bundle, stamp, wanted):
        return bundle
    from selfdraft.export.bundle import export_bundle
    from selfdraft.export.options import ExportOptions

    if not quiet:
        note(f"exporting {checkpoint} to {bundle}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
    except OSError as error:
        raise ResourceError(
            f"{folder} cannot be written: {error.strerror}", hint="set SELFDRAFT_HOME or --home"
        ) from None
    with stage_progress(quiet=quiet) as on_stage:
        export_bundle(checkpoint, bundle, ExportOptions(overwrite=True, name=DEMO_NAME), on_stage)
    stamp.write_text(json.dumps(wanted), encoding="utf-8")
    return bundle


def _is_current(bundle: Path, stamp: Path, wanted: dict[str, str]) -> bool:
    from selfdraft.errors import BundleError
    from selfdraft.runtime.bundle import open_bundle

    try:
        if json.loads(stamp.read_text(encoding="utf-8")) != wanted:
            return False
        open_bundle(bundle)
    except (OSError, ValueError, BundleError):
        return False
    return True


def _digest(checkpoint: Path) -> str:
    """Hash over names and contents of the checkpoint's files; a few MB."""
    digest = hashlib.sha256()
    for path in sorted(p for p in checkpoint.iterdir() if p.is_file()):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
