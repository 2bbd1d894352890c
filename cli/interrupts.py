"""Ctrl-C that ends a reply between two steps, and leaves the caches whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopFlag:
    """Set by Ctrl-C; looked at between steps."""

    class Stopped(Exception):
        """The flag was found set."""

    def __init__(self) -> None:
        self.is_set = False

    def check(self) -> None:
        """Raise ``Stopped`` once the flag is set."""
        if self.is_set:
            raise StopFlag.Stopped


@contextmanager
def stop_on_interrupt() -> Iterator[StopFlag]:
    """While inside, the first Ctrl-C sets the flag; the second one interrupts as usual."""
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before = signal.getsignal(signal.SIGINT)

    def on_interrupt(_signal: int, _frame: FrameType | None) -> None:
        if flag.is_set:
            raise KeyboardInterrupt
        flag.is_set = True

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, before)
