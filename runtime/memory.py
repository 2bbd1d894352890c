"""Memory of this process."""

from __future__ import annotations

import sys


def peak_rss_bytes() -> int | None:
    """Peak resident bytes of this process; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
