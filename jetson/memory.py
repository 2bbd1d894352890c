"""Memory, swap and fragmentation, as Linux tells them."""

from __future__ import annotations

import re

from selfdraft.jetson.device import Memory, Swap
from selfdraft.jetson.numbers import count_from_text
from selfdraft.jetson.system import System

PAGE_BYTES = 4096
_ENTRY = re.compile(r"^(\w+):\s+(\d{1,15}) kB", re.MULTILINE | re.ASCII)
_SWAP = re.compile(r"^(\S+)\s+\w+\s+(\d{1,15})\s+(\d{1,15})\b", re.MULTILINE | re.ASCII)


def parse_meminfo(text: str) -> dict[str, int]:
    """``{name: bytes}`` of ``/proc/meminfo``."""
    return {name: int(kib) << 10 for name, kib in _ENTRY.findall(text)}


def parse_swaps(text: str) -> tuple[Swap, ...]:
    """The areas of ``/proc/swaps``."""
    return tuple(
        Swap(
            name=name,
            zram="zram" in name,
            total_bytes=int(total_kib) << 10,
            used_bytes=int(used_kib) << 10,
        )
        for name, total_kib, used_kib in _SWAP.findall(text)
    )


def parse_buddyinfo(text: str) -> tuple[int, int] | None:
    """(blocks, bytes of one) of the largest free blocks in ``/proc/buddyinfo``, all zones
    together: what tegrastats shows as lfb."""
    counts: dict[int, int] = {}
    for line in text.splitlines():
        numbers = line.partition("zone")[2].split()[1:]
        for order, number in enumerate(numbers):
            counts[order] = counts.get(order, 0) + (count_from_text(number) or 0)
    largest = max((order for order, count in counts.items() if count), default=None)
    return None if largest is None else (counts[largest], PAGE_BYTES << largest)


def read_memory(system: System) -> Memory:
    """Memory now. ``MemAvailable`` is the figure to plan with: the CUDA driver's own counts page
    cache as used, and GPU memory cannot be swapped out."""
    info = parse_meminfo(system.text("/proc/meminfo") or "")
    free = info.get("MemFree", 0)
    return Memory(
        total_bytes=info.get("MemTotal", 0),
        available_bytes=info.get("MemAvailable", free),
        free_bytes=free,
        cached_bytes=info.get("Cached", 0),
        swaps=parse_swaps(system.text("/proc/swaps") or ""),
        largest_free=parse_buddyinfo(system.text("/proc/buddyinfo") or ""),
    )
