"""The machine as files, seen from a root folder: the device itself, or a tree that imitates one."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_COMMAND_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFacts:
    """An interpreter: its version, where it lies, and where it looks for modules."""

    version: str
    executable: str
    prefix: str
    base_prefix: str
    search_path: tuple[str, ...]

    @classmethod
    def running(cls) -> PythonFacts:
        """The interpreter that runs this."""
        return cls(
            version=platform.python_version(),
            executable=sys.executable,
            prefix=sys.prefix,
            base_prefix=sys.base_prefix,
            search_path=tuple(os.path.abspath(folder) for folder in sys.path if folder),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Files below ``root``, and what commands and the process would say.

    Absolute paths are taken from ``root``. Nothing here raises for what is missing or unreadable:
    that is ``None``, or empty. ``outputs`` stands for running a command (another root cannot run
    any); ``None`` runs it.
    """

    root: Path
    architecture: str
    environment: Mapping[str, str]
    python: PythonFacts
    outputs: Mapping[tuple[str, ...], str] | None = field(default=None)

    @classmethod
    def live(cls) -> System:
        """This machine."""
        return cls(
            root=Path("/"),
            architecture=platform.machine(),
            environment=dict(os.environ),
            python=PythonFacts.running(),
        )

    def path(self, absolute: str) -> Path:
        """Where ``absolute`` lies for this process."""
        return self.root / absolute.lstrip("/")

    def absolute(self, path: Path) -> str:
        """``path`` below the root, as seen from the root."""
        return "/" + path.relative_to(self.root).as_posix()

    def exists(self, absolute: str) -> bool:
        """Whether there is such a file or folder."""
        return os.path.lexists(self.path(absolute))

    def text(self, absolute: str) -> str | None:
        """The file's text without NULs and white space around it."""
        try:
            data = self.path(absolute).read_bytes()
        except OSError:
            return None
        return data.decode("utf-8", errors="replace").strip("\0 \t\r\n")

    def lines(self, absolute: str) -> Iterator[str]:
        """The file's lines, one at a time."""
        try:
            with self.path(absolute).open(encoding="utf-8", errors="replace") as file:
                yield from file
        except OSError:
            return

    def link(self, absolute: str) -> str | None:
        """What a symbolic link points to."""
        try:
            return os.readlink(self.path(absolute))
        except OSError:
            return None

    def number(self, absolute: str) -> int | None:
        """The file's content as an integer, decimal or with a base prefix."""
        text = self.text(absolute)
        try:
            return int(text, 0) if text else None
        except ValueError:
            return None

    def glob(self, pattern: str) -> tuple[str, ...]:
        """Sorted absolute paths that match ``pattern``."""
        try:
            found = sorted(self.root.glob(pattern.lstrip("/")))
        except OSError:
            return ()
        return tuple(self.absolute(path) for path in found)

    def first(self, *absolutes: str) -> str | None:
        """The first of the paths that exists."""
        return next((path for path in absolutes if self.exists(path)), None)

    def output(self, *command: str) -> str | None:
        """What the command prints on both streams; ``None`` where it cannot run."""
        if self.outputs is not None:
            return self.outputs.get(command)
        if self.root != Path("/"):
            return None
        try:
            done = subprocess.run(
                command,
                check=False,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                errors="replace",
                timeout=_COMMAND_TIMEOUT_S,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout
