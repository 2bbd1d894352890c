"""Standard streams that can be used, whatever the program was started with."""

from __future__ import annotations

import os
import sys

from selfdraft.errors import ResourceError

EXIT_NO_STDOUT = ResourceError.exit_code


def open_streams() -> bool:
    """Whether results can be written; makes stdin and stderr usable where they are closed.

    A closed stdin reads as empty. What a closed stderr would say goes nowhere.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - as long as the program
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stderr.write("error: stdout is closed\nhint: send it to a file, or to /dev/null\n")
        return False
    for stream in (sys.stdout, sys.stderr):
        # A terminal without UTF-8 shows a replacement instead of failing halfway through.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    return True
