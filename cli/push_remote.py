"""Another machine by ssh, scp and rsync: what it says, and what goes there."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from selfdraft.errors import ConfigError, DeviceError

_TARGET = re.compile(r"(?P<host>[\w.@\[\]-][\w.@:\[\]-]*?):(?P<folder>[\w./+-]+)")
STDERR = 2
"""File descriptor: results alone go to stdout."""
SSH_FAILED = 255
"""Exit code of ssh itself; others are of the command over there."""
RSYNC_MISSING = (12, 127)
"""Exit codes of an rsync that the other end does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder on another machine."""

    host: str
    folder: str

    @property
    def text(self) -> str:
        """As ssh's tools write it."""
        return f"{self.host}:{self.folder}"

    def below(self, name: str) -> Place:
        """A folder in this one; ``name`` is none of the user's."""
        return Place(host=self.host, folder=f"{self.folder}/{name}")


def parse_place(text: str) -> Place:
    """``user@board:/dir``. Raises ``ConfigError`` for anything that a shell might read otherwise."""
    found = _TARGET.fullmatch(text)
    if found is None or text.startswith("-") or found["folder"].startswith("-"):
        raise ConfigError(
            f"{text!r} is no place on another machine",
            hint="write it as user@board:/folder, with letters, digits and . _ - + / only",
        )
    return Place(host=found["host"], folder=found["folder"].rstrip("/") or "/")


def ssh(place: Place, command: str, *, given: Iterable[str] = ()) -> str:
    """What ``command`` prints on the other machine; it reads the lines ``given``.

    Names of files go there as lines only: a shell would read them otherwise. Raises
    ``DeviceError`` where the machine is not reached or the command fails.
    """
    if shutil.which("ssh") is None:
        raise DeviceError("ssh is not installed", hint="install the OpenSSH client")
    done = subprocess.run(
        ["ssh", place.host, command],
        input=_lines(given),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:200]
        if done.returncode != SSH_FAILED:
            raise DeviceError(
                f"{place.host} refuses: {said}",
                hint=f"see that you may write there, and that there is room: {place.text}",
            )
        raise DeviceError(
            f"ssh {place.host} failed: {said}",
            hint=f"see that this works without a password: ssh {place.host} true",
        )
    return done.stdout


def hashes_at(place: Place, names: Iterable[str]) -> dict[str, str]:
    """SHA-256 of those of ``names`` that are there, as ``sha256sum`` of the other machine says."""
    command = f"cd {place.folder} && xargs -d '\\n' sha256sum -- 2>/dev/null || true"
    lines = (line.split(maxsplit=1) for line in ssh(place, command, given=names).splitlines())
    return {parts[1].lstrip("*"): parts[0] for parts in lines if len(parts) == 2}


def rsync(source: Path, place: Place, names: Sequence[str]) -> bool:
    """Copy ``names`` below ``source``; False where one of the two machines has no rsync.

    What is there is compared by its content: a spoilt file may have the right size and time. Paths
    here begin with a slash, since a colon in a relative one would make it another machine's. Raises
    ``DeviceError`` for a copy that ends early.
    """
    if not shutil.which("rsync"):
        return False
    arguments = ["rsync", "-rtc", "--partial", "--info=progress2", "--files-from=-"]
    status = _run([*arguments, f"{source.absolute()}/", f"{place.text}/"], given=names)
    if status and status not in RSYNC_MISSING:
        raise _cut_short("rsync", status)
    return status == 0


def scp(source: Path, place: Place, name: str) -> None:
    """Copy one file to ``name`` in ``place``. Raises ``DeviceError``."""
    if shutil.which("scp") is None:
        raise DeviceError("scp is not installed", hint="install the OpenSSH client")
    status = _run(["scp", "-p", str(source.absolute()), f"{place.text}/{name}"])
    if status:
        raise _cut_short("scp", status)


def _run(arguments: Sequence[str], *, given: Iterable[str] = ()) -> int:
    """Exit code; what the program shows goes to stderr."""
    done = subprocess.run(arguments, input=_lines(given), text=True, stdout=STDERR, check=False)
    return done.returncode


def _lines(given: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in given)


def _cut_short(program: str, status: int) -> DeviceError:
    return DeviceError(
        f"{program} ended with exit code {status} before everything was copied",
        hint="give the same command again: it goes on from there",
    )
