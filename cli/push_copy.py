"""Copying a bundle to another machine with ssh and rsync or scp, and checking what arrived there.

The manifest goes last, once every other file has its hash: a folder without it is no bundle, so that
a copy that was cut short is never taken for one. The same command goes on where it stopped.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from selfdraft.errors import ConfigError, DeviceError, VerificationError
from selfdraft.manifest import MANIFEST_NAME
from selfdraft.runtime.bundle import Bundle

_TARGET = re.compile(r"(?P<host>[\w.@\[\]-][\w.@:\[\]-]*?):(?P<folder>[\w./+-]+)")
STDERR = 2
"""File descriptor: results alone go to stdout."""
RSYNC_MISSING = (12, 127)
"""Exit codes of an rsync that the other end does not have."""

OnStage = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder on another machine."""

    host: str
    folder: str

    @property
    def text(self) -> str:
        """As ssh's tools write it."""
        return f"{self.host}:{self.folder}"


def parse_place(text: str) -> Place:
    """``user@board:/dir``. Raises ``ConfigError`` for anything that a shell might read otherwise."""
    found = _TARGET.fullmatch(text)
    if found is None or text.startswith("-"):
        raise ConfigError(
            f"{text!r} is no place on another machine",
            hint="write it as user@board:/folder, with letters, digits and . _ - + / only",
        )
    return Place(host=found["host"], folder=found["folder"].rstrip("/") or "/")


def push_bundle(bundle: Bundle, place: Place, *, on_stage: OnStage) -> str:
    """Copy ``bundle`` into the folder ``place``; the program that copied.

    Raises ``DeviceError`` where the other machine is not reached or the copy ends early, and
    ``VerificationError`` for files that arrived otherwise than they left.
    """
    names = [name for name in bundle.manifest.files if (bundle.path / name).exists()]
    folders = sorted({str(Path(name).parent) for name in names} - {"."})
    on_stage("connect", 0, 1)
    paths = " ".join(f"{place.folder}/{folder}" for folder in ["", *folders])
    _ssh(place, f"mkdir -p {paths} && rm -f {place.folder}/{MANIFEST_NAME}")
    on_stage("copy", 0, 1)
    program = _copy(bundle, place, names)
    on_stage("check hashes there", 0, 1)
    _check(bundle, place, names)
    on_stage("manifest", 0, 1)
    _scp([bundle.path / MANIFEST_NAME], f"{place.text}/{MANIFEST_NAME}")
    return program


def _copy(bundle: Bundle, place: Place, names: Sequence[str]) -> str:
    if shutil.which("rsync"):
        listed = "".join(f"{name}\n" for name in names)
        arguments = ["rsync", "-rt", "--partial", "--info=progress2", "--files-from=-"]
        status = _run([*arguments, f"{bundle.path}/", f"{place.text}/"], given=listed)
        if status == 0:
            return "rsync"
        if status not in RSYNC_MISSING:
            raise _cut_short("rsync", status)
    elsewhere = _hashes(place, names)
    for name in names:
        if elsewhere.get(name) != bundle.manifest.files[name].sha256:
            _scp([bundle.path / name], f"{place.text}/{name}")
    return "scp"


def _scp(sources: Sequence[Path], target: str) -> None:
    if shutil.which("scp") is None:
        raise DeviceError("scp is not installed", hint="install the OpenSSH client")
    status = _run(["scp", "-p", *map(str, sources), target])
    if status:
        raise _cut_short("scp", status)


def _check(bundle: Bundle, place: Place, names: Sequence[str]) -> None:
    found = _hashes(place, names)
    wrong = [name for name in names if found.get(name) != bundle.manifest.files[name].sha256]
    if wrong:
        raise VerificationError(
            f"{len(wrong)} of {len(names)} files at {place.text} differ: {', '.join(wrong[:3])}",
            hint=f"copy them again: selfdraft push {bundle.path} {place.text}",
        )


def _hashes(place: Place, names: Sequence[str]) -> dict[str, str]:
    """SHA-256 of the files that are there, as ``sha256sum`` of the other machine says."""
    listed = "".join(f"{name}\n" for name in names)
    command = f"cd {place.folder} && xargs -d '\\n' sha256sum -- 2>/dev/null || true"
    text = _ssh(place, command, given=listed)
    lines = (line.split(maxsplit=1) for line in text.splitlines())
    return {parts[1].lstrip("*"): parts[0] for parts in lines if len(parts) == 2}


def _ssh(place: Place, command: str, *, given: str = "") -> str:
    """What ``command`` prints on the other machine."""
    if shutil.which("ssh") is None:
        raise DeviceError("ssh is not installed", hint="install the OpenSSH client")
    done = subprocess.run(
        ["ssh", place.host, command],
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise DeviceError(
            f"ssh {place.host} failed: {said[-1][:200]}",
            hint=f"see that this works without a password: ssh {place.host} true",
        )
    return done.stdout


def _run(arguments: Sequence[str], *, given: str = "") -> int:
    """Exit code; what the program shows goes to stderr."""
    done = subprocess.run(arguments, input=given, text=True, stdout=STDERR, check=False)
    return done.returncode


def _cut_short(program: str, status: int) -> DeviceError:
    return DeviceError(
        f"{program} ended with exit code {status} before everything was copied",
        hint="give the same command again: it goes on from there",
    )
