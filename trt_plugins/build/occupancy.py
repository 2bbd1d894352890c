"""Thread blocks that fit on one multiprocessor, by CUDA's allocation rules.

Figures: CUDA C++ Programming Guide, "Compute Capabilities" (technical specifications table), and the
allocation granularities of NVIDIA's occupancy calculator.
"""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
REGISTER_GRANULE = 256
"""Registers are given to a warp in multiples of this."""
SHARED_GRANULE = 128
SHARED_RESERVED = 1024
"""Shared memory of each block that the system keeps."""
SUBPARTITIONS = 4
"""Each holds a quarter of the registers, and whole warps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiprocessor:
    """What one multiprocessor (SM) has."""

    registers: int = 65_536
    threads: int
    blocks: int
    shared_bytes: int
    shared_bytes_per_block: int
    """The most that one block may have, without what the system keeps."""


MULTIPROCESSORS = {
    "sm_80": Multiprocessor(
        threads=2048, blocks=32, shared_bytes=164 * 1024, shared_bytes_per_block=163 * 1024
    ),
    "sm_87": Multiprocessor(
        threads=1536, blocks=16, shared_bytes=164 * 1024, shared_bytes_per_block=163 * 1024
    ),
    "sm_90": Multiprocessor(
        threads=2048, blocks=32, shared_bytes=228 * 1024, shared_bytes_per_block=227 * 1024
    ),
}
"""The architectures that kernels are built for: Orin (sm_87), and test machines."""


def blocks_per_sm(sm: Multiprocessor, *, threads: int, registers: int, shared_bytes: int) -> int:
    """Blocks of ``threads`` that fit at once; ``registers`` a thread, ``shared_bytes`` a block.

    0 when one block alone asks for too much.
    """
    if shared_bytes > sm.shared_bytes_per_block:
        return 0
    warps = -(-threads // WARP)
    by_warp = _round_up(max(registers, 1) * WARP, REGISTER_GRANULE)
    warps_by_registers = SUBPARTITIONS * (sm.registers // SUBPARTITIONS // by_warp)
    shared = _round_up(shared_bytes + SHARED_RESERVED, SHARED_GRANULE)
    return min(
        sm.blocks,
        sm.threads // WARP // warps,
        warps_by_registers // warps,
        sm.shared_bytes // shared,
    )


def _round_up(value: int, granule: int) -> int:
    return -(-value // granule) * granule
