"""A program on a pseudo-terminal: type, wait for what it shows, interrupt it."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence


class Terminal:
    """Runs ``arguments`` with stdin, stdout and stderr on one pseudo-terminal."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._screen, program_side = pty.openpty()
        # The tests may run where Ctrl-C is ignored, as in a script's background, and programs inherit that.
        ours = signal.signal(signal.SIGINT, signal.default_int_handler)
        self._process = subprocess.Popen(
            arguments,
            stdin=program_side,
            stdout=program_side,
            stderr=program_side,
            env=dict(environment) | {"TERM": "dumb"},
            close_fds=True,
        )
        signal.signal(signal.SIGINT, ours)
        os.close(program_side)
        self.shown = ""

    def close(self) -> None:
        """End the program if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._screen)

    def wait_for(self, text: str, *, seconds: float = 60.0) -> str:
        """Read until ``text`` is shown; returns, and forgets, everything up to its end."""
        deadline = time.monotonic() + seconds
        while text not in self.shown:
            more = self._read(deadline)
            assert more, f"{text!r} did not come; shown: {self.shown!r}"
            self.shown += more
        before, _, self.shown = self.shown.partition(text)
        return before + text

    def type(self, text: str) -> None:
        """Send ``text`` as if typed."""
        os.write(self._screen, text.encode())

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def exit_code(self, *, seconds: float = 60.0) -> int:
        """Read to the end, and the exit code."""
        deadline = time.monotonic() + seconds
        while more := self._read(deadline):
            self.shown += more
        return self._process.wait(timeout=max(1.0, deadline - time.monotonic()))

    def interrupt_until_exit(self, *, seconds: float = 60.0) -> int:
        """Ctrl-C, pressed again each second: the line editor misses one that comes too early."""
        deadline = time.monotonic() + seconds
        while self._process.poll() is None and time.monotonic() < deadline:
            self.interrupt()
            self.shown += self._read(time.monotonic() + 1.0)
        return self.exit_code()

    def _read(self, deadline: float) -> str:
        """What is shown next; empty when the program has ended or the deadline has passed."""
        ready, _, _ = select.select([self._screen], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return ""
        try:
            return os.read(self._screen, 65536).decode("utf-8", errors="replace")
        except OSError:  # Linux: the other side is closed
            return ""
