"""Memory and streams of the double. A stream does nothing until somebody waits for it.

So a result that is read without waiting is still poison, and an input that is overwritten too
early is wrong.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 512
GARBAGE = 0xAB
POISON = 0xA5


@dataclass(frozen=True, kw_only=True)
class Work:
    """One thing on a stream. ``queued`` runs when it is put there, ``run`` when its turn comes."""

    label: str
    run: Callable[[], None]
    queued: Callable[[], None] = lambda: None


@dataclass(kw_only=True)
class Copy:
    """A copy that was made, for tests to look at."""

    kind: str
    num_bytes: int


@dataclass(kw_only=True)
class FakeDevice:
    """All memory of the double, and its stream."""

    memory_bytes: int = 1 << 32
    held_bytes: int = 0
    """A count of its own: the collector may free some while one goes through ``arrays``."""
    starts: list[int] = field(default_factory=list)
    arrays: dict[int, NDArray[np.uint8]] = field(default_factory=dict)
    pinned: list[NDArray[np.uint8]] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    num_allocations: int = 0
    """Device and pinned memory, and events: everything that a decode step must not make."""
    queue: list[Work] = field(default_factory=list)
    num_queued: int = 0
    """Ever queued; ``num_queued - len(queue)`` are done."""
    capturing: list[Work] | None = None
    entered: dict[int, int] = field(default_factory=dict)
    """How often the primary context was pushed, by thread."""

    def assert_current(self) -> None:
        assert self.entered.get(threading.get_ident()), "this thread has no context"

    def count_allocation(self) -> None:
        self.assert_current()
        assert self.capturing is None, "something was allocated while capturing"
        self.num_allocations += 1

    def allocate(self, num_bytes: int) -> int:
        """Address of garbage, or 0 where memory is out."""
        self.count_allocation()
        if self.held_bytes + num_bytes > self.memory_bytes:
            return 0
        self.held_bytes += num_bytes
        room = np.full(num_bytes + ALIGNMENT, GARBAGE, np.uint8)
        start = -(-room.ctypes.data // ALIGNMENT) * ALIGNMENT
        skipped = start - room.ctypes.data
        bisect.insort(self.starts, start)
        self.arrays[start] = room[skipped : skipped + num_bytes]
        return start

    def free(self, address: int) -> None:
        self.finish()  # as cuMemFree does
        self.starts.remove(address)
        self.held_bytes -= self.arrays.pop(address).size

    def view(self, address: int, num_bytes: int) -> NDArray[np.uint8]:
        """Bytes of device memory; outside of an allocation is an error."""
        place = bisect.bisect_right(self.starts, address) - 1
        assert place >= 0, f"{address:#x} is no device memory"
        array, offset = self.arrays[self.starts[place]], address - self.starts[place]
        assert offset + num_bytes <= array.size, f"{num_bytes} bytes from {address:#x} leave memory"
        return array[offset : offset + num_bytes]

    def make_pinned(self, num_bytes: int) -> NDArray[np.uint8]:
        self.count_allocation()
        array = np.full(num_bytes, GARBAGE, np.uint8)
        self.pinned.append(array)
        return array

    def assert_pinned(self, array: NDArray[Any]) -> None:
        start, end = array.ctypes.data, array.ctypes.data + array.nbytes
        assert any(
            own.ctypes.data <= start and end <= own.ctypes.data + own.nbytes for own in self.pinned
        ), "an asynchronous copy of memory that is not pinned"

    def put(self, work: Work) -> None:
        """Queue work, or record it while capturing."""
        self.assert_current()
        if self.capturing is not None:
            self.capturing.append(work)
            return
        work.queued()
        self.queue.append(work)
        self.num_queued += 1

    def run_until(self, count: int) -> None:
        """Do the work up to the ``count``-th ever queued."""
        assert self.capturing is None, "somebody waited while capturing"
        while self.queue and self.num_queued - len(self.queue) < count:
            self.queue.pop(0).run()

    def finish(self) -> None:
        self.run_until(self.num_queued)

    def copy_in(self, address: int, source: NDArray[Any]) -> Work:
        self.assert_pinned(source)
        target, flat = self.view(address, source.nbytes), _flat(source)
        self.copies.append(Copy(kind="in", num_bytes=source.nbytes))
        return Work(label="copy in", run=lambda: np.copyto(target, flat))

    def copy_out(self, target: NDArray[Any], address: int) -> Work:
        self.assert_pinned(target)
        source, flat = self.view(address, target.nbytes), _flat(target)

        def queued() -> None:
            flat[:] = POISON
            self.copies.append(Copy(kind="out", num_bytes=flat.size))

        return Work(label="copy out", run=lambda: np.copyto(flat, source), queued=queued)

    def copy_across(self, target: int, source: int, num_bytes: int) -> Work:
        to, from_ = self.view(target, num_bytes), self.view(source, num_bytes)
        self.copies.append(Copy(kind="across", num_bytes=num_bytes))
        return Work(label="copy across", run=lambda: np.copyto(to, from_))

    def copy_now(self, address: int, host: NDArray[Any], *, out: bool) -> None:
        """A copy on the null stream."""
        self.assert_current()
        assert self.capturing is None, "a copy outside the stream while capturing"
        assert not self.queue, "a copy outside the stream while work is queued"
        device, flat = self.view(address, host.nbytes), _flat(host)
        self.copies.append(Copy(kind="out now" if out else "in now", num_bytes=host.nbytes))
        if out:
            np.copyto(flat, device)
        else:
            np.copyto(device, flat)


def _flat(array: NDArray[Any]) -> NDArray[np.uint8]:
    assert array.flags.c_contiguous, "pycuda copies contiguous arrays only"
    return array.reshape(-1).view(np.uint8)
