"""What each kernel takes on each architecture, and which of its limits that breaks."""

from __future__ import annotations

from dataclasses import dataclass

from selfdraft.trt_plugins.build.kernel_list import KernelEntry
from selfdraft.trt_plugins.build.occupancy import MULTIPROCESSORS, blocks_per_sm
from selfdraft.trt_plugins.build.ptxas_log import KernelUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """One kernel on one architecture."""

    op: str
    kernel: str
    arch: str
    usage: KernelUsage
    limits: KernelEntry
    shared_bytes: int
    """Static and dynamic, of one block."""
    blocks_per_sm: int
    occupancy: float
    """Share of a multiprocessor's threads that can be resident, 0 to 1."""
    violations: tuple[str, ...]


def kernel_report(
    op: str, kernel: str, *, arch: str, usage: KernelUsage, limits: KernelEntry
) -> KernelReport:
    """Usage of one kernel beside its limits."""
    shared = usage.static_shared_bytes + limits.dynamic_shared_bytes
    sm = MULTIPROCESSORS[arch]
    blocks = blocks_per_sm(
        sm, threads=limits.threads, registers=usage.registers, shared_bytes=shared
    )
    return KernelReport(
        op=op,
        kernel=kernel,
        arch=arch,
        usage=usage,
        limits=limits,
        shared_bytes=shared,
        blocks_per_sm=blocks,
        occupancy=blocks * limits.threads / sm.threads,
        violations=_violations(usage, limits, blocks),
    )


def _violations(usage: KernelUsage, limits: KernelEntry, blocks: int) -> tuple[str, ...]:
    spilled = usage.spill_store_bytes + usage.spill_load_bytes
    found = []
    if spilled > limits.max_spill_bytes:
        found.append(f"spills {spilled} bytes, limit {limits.max_spill_bytes}")
    if usage.registers > limits.max_registers:
        found.append(f"{usage.registers} registers, limit {limits.max_registers}")
    if blocks < limits.min_blocks_per_sm:
        found.append(f"{blocks} blocks on a multiprocessor, wanted {limits.min_blocks_per_sm}")
    return tuple(found)
