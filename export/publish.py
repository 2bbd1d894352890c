"""A folder that appears complete or not at all.

Work goes to a sibling ``.<name>.partial-<pid>``; the manifest is written last and a rename
publishes. Only a kill that no handler sees leaves the sibling behind: without its manifest it
never loads, and the next export to the same place removes it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from selfdraft.errors import ConfigError, ResourceError
from selfdraft.manifest import MANIFEST_NAME, FileSpec

READ_BYTES = 1 << 20
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
ALIGN_RECORD = "align.json"
"""What ``align`` writes into the checkpoints that it makes."""
BUNDLE_KEYS = ("schema_version", "selfdraft_version", "graphs")


def check_output(output: Path, *, overwrite: bool) -> None:
    """Refuse an output that is in the way; a folder that selfdraft did not write is never replaced.

    Raises ``ConfigError``.
    """
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not is_ours(output):
        raise ConfigError(
            f"{output} exists, and selfdraft did not write it",
            hint="choose another output folder",
        )
    if not overwrite:
        raise ConfigError(
            f"{output} exists", hint="choose another output folder, or replace it: --overwrite"
        )


def is_bundle(path: Path) -> bool:
    """Whether the folder has a manifest of ours, of any schema version."""
    data = _object_in(path / MANIFEST_NAME)
    return all(key in data for key in BUNDLE_KEYS)


def is_ours(path: Path) -> bool:
    """Whether selfdraft wrote the folder: a bundle, or a checkpoint that ``align`` made."""
    schema = _object_in(path / ALIGN_RECORD).get("schema")
    return is_bundle(path) or str(schema).startswith("selfdraft.align/")


def _object_in(path: Path) -> dict[str, object]:
    """A JSON object; an empty one where there is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def check_disk_space(output: Path, needed: int, *, smaller: str | None = None) -> None:
    """Raises ``ResourceError`` with both figures when the disk has less than ``needed`` bytes.

    ``smaller``: what would make the output smaller, e.g. an option.
    """
    place = output.parent
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise ResourceError(
            f"{output} needs {needed / 2**30:.2f} GiB, {place} has {free / 2**30:.2f} GiB free",
            hint=" or ".join(filter(None, ("free disk space", "choose another disk", smaller))),
        )


@contextlib.contextmanager
def new_folder(output: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """A temporary folder that becomes ``output`` when the block ends without an exception.

    Without ``overwrite`` a bundle that appeared there meanwhile stays (``ConfigError``). Any exception, Ctrl-C and SIGTERM remove it. Raises ``ResourceError`` for a full disk or a
    place that cannot be written.
    """
    partial = output.parent / f".{output.name}.partial-{os.getpid()}"
    with resource_errors(output), _termination_raises():
        output.parent.mkdir(parents=True, exist_ok=True)
        _clear_stale(output)
        os.mkdir(partial)
        try:
            yield partial
            sync_folder(partial)
            check_output(output, overwrite=overwrite)
            _rename_over(partial, output)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        sync_folder(output.parent)


@contextlib.contextmanager
def resource_errors(output: Path) -> Iterator[None]:
    """Turn failures of the operating system while writing ``output`` into ``ResourceError``."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise ResourceError(
                f"the disk is full while writing {output}",
                hint="free disk space or choose another disk, then run the command again",
            ) from error
        where = f" ({error.filename})" if error.filename else ""
        raise ResourceError(
            f"{output} cannot be written: {error.strerror or error}{where}",
            hint="choose an output folder that you may write to",
        ) from error


def hash_files(folder: Path, on_bytes: Callable[[int, int], None]) -> dict[str, FileSpec]:
    """Size and SHA-256 of every file below ``folder``, by relative name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    total = sum(path.stat().st_size for path in files)
    done, specs = 0, {}
    for path in files:
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            while piece := stream.read(READ_BYTES):
                digest.update(piece)
                done += len(piece)
                on_bytes(done, total)
        name = path.relative_to(folder).as_posix()
        specs[name] = FileSpec(bytes=path.stat().st_size, sha256=digest.hexdigest())
    return specs


def write_synced(path: Path, content: bytes) -> None:
    """Write a small file and flush it to disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Flush a file that another library wrote."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Flush a folder's entries."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _rename_over(partial: Path, output: Path) -> None:
    """Publish; an old bundle is moved aside first and put back should the rename fail."""
    if not is_ours(output):
        os.replace(partial, output)
        return
    aside = output.parent / f".{output.name}.old-{os.getpid()}"
    os.replace(output, aside)
    try:
        os.replace(partial, output)
    except BaseException:
        os.replace(aside, output)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _clear_stale(output: Path) -> None:
    """Remove what killed exports left here; an old bundle that one moved aside comes back."""
    for kind in ("old", "partial"):
        prefix = f".{output.name}.{kind}-"
        for path in output.parent.iterdir():
            pid = path.name.removeprefix(prefix)
            if not path.name.startswith(prefix) or not pid.isdigit() or _is_running(int(pid)):
                continue
            if kind == "old" and not output.exists():
                os.replace(path, output)
            else:
                shutil.rmtree(path)


def _is_running(pid: int) -> bool:
    """Whether another process has this id."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


@contextlib.contextmanager
def _termination_raises() -> Iterator[None]:
    """Let SIGTERM unwind the stack like Ctrl-C does; only the main thread can ask for that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if previous is None else previous)
