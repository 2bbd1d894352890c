"""What ``ptxas -v`` says of each kernel: registers, shared memory, stack, spills."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENTRY = re.compile(r"Compiling entry function '(?P<name>\w+)' for '(?P<arch>sm_\w+)'")
_SPILLS = re.compile(
    r"(?P<stack>\d+) bytes stack frame, "
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
)
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelUsage:
    """What one kernel takes, as ptxas reports it."""

    registers: int
    static_shared_bytes: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


def kernel_usage(log: str) -> dict[str, KernelUsage]:
    """Usage of every kernel in a log, by entry name. Raises ``ValueError`` for an unknown form."""
    starts = list(_ENTRY.finditer(log))
    ends = [match.start() for match in starts[1:]] + [len(log)]
    return {
        match["name"]: _usage(match["name"], log[match.end() : end])
        for match, end in zip(starts, ends, strict=True)
    }


def _usage(name: str, text: str) -> KernelUsage:
    spills, registers, shared = (p.search(text) for p in (_SPILLS, _REGISTERS, _SHARED))
    if spills is None or registers is None:
        raise ValueError(f"ptxas reports no registers or no spills for {name}")
    return KernelUsage(
        registers=int(registers[1]),
        static_shared_bytes=int(shared[1]) if shared else 0,
        stack_bytes=int(spills["stack"]),
        spill_store_bytes=int(spills["stores"]),
        spill_load_bytes=int(spills["loads"]),
    )
