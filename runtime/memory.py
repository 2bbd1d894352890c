"""Memory of this process, and what the system could still give it."""

from __future__ import annotations

import sys
from pathlib import Path

MEMINFO = Path("/proc/meminfo")


def peak_rss_bytes() -> int | None:
    """Peak resident bytes of this process; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def available_bytes() -> int | None:
    """Memory that Linux could give without swapping (``MemAvailable``); None where nobody says."""
    try:
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith("MemAvailable:")), None)
    return None if found is None else int(found.split()[1]) * 1024
