"""Memory, threads and open files of another process, over time."""

from __future__ import annotations

import os
import statistics
import threading
import time
from pathlib import Path
from typing import NamedTuple

INTERVAL_S = 1.0


class Reading(NamedTuple):
    """One look at a process."""

    at_s: float
    """Since the watch began."""
    rss_bytes: int
    threads: int
    files: int
    """Open file descriptors, sockets included."""


class ProcessWatch(threading.Thread):
    """Looks at process ``pid`` every second until it is stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__(name="process-watch", daemon=True)
        self._pid = pid
        self._over = threading.Event()
        self._began = time.monotonic()
        self.readings: list[Reading] = []

    def run(self) -> None:
        """Take readings."""
        while not self._over.wait(INTERVAL_S):
            self.readings.append(self.look())

    def look(self) -> Reading:
        """A reading of now."""
        status = Path(f"/proc/{self._pid}/status").read_text(encoding="ascii", errors="replace")
        fields = dict(line.split(":", 1) for line in status.splitlines())
        return Reading(
            at_s=time.monotonic() - self._began,
            rss_bytes=int(fields["VmRSS"].split()[0]) * 1024,
            threads=int(fields["Threads"]),
            files=len(os.listdir(f"/proc/{self._pid}/fd")),
        )

    def stop(self) -> None:
        """End the watch."""
        self._over.set()
        self.join()


def typical(readings: list[Reading], begin: float, end: float) -> Reading:
    """Medians of the readings between the shares ``begin`` and ``end`` of the whole time."""
    last = readings[-1].at_s
    chosen = [one for one in readings if begin * last <= one.at_s <= end * last] or readings[-1:]
    middle = [statistics.median_low([one[index] for one in chosen]) for index in range(4)]
    return Reading(middle[0], int(middle[1]), int(middle[2]), int(middle[3]))
